"""The rows of the back-pressure benchmark, 100 bytes with the id in front."""

from __future__ import annotations

ID_DIGITS = 16
ID = slice(0, ID_DIGITS)  # where a value has it
VALUE_BYTES = 100
COLUMNS = {
    "key": "lpad(cast(pmod(id, 10000) AS string), 8, '0')",
    # lz4 finds nothing to shorten in hexadecimal digits, so the in-flight log is as large as it can be.
    "value": f"concat(lpad(cast(id AS string), {ID_DIGITS}, '0'),"
    f" substr(sha2(cast(id AS string), 512), 1, {VALUE_BYTES - ID_DIGITS}))",
}
