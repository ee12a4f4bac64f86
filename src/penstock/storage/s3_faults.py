"""What S3 and its client library refuse, as errors of ours.

| answer | becomes | tried again |
|---|---|---|
| a token that has expired | `CredentialsExpired` | yes, with keys looked up anew |
| no keys at all, a wrong key, a missing right | `AccessDenied` | no |
| there is no such bucket | `ConfigurationError` | no |
| a quota is used up | `StorageFull` | yes |
| slow down, an error of the server, no connection, no end | `SystemUnavailable` | yes |
| anything else | `SystemUnavailable` with the server's words | yes |
"""

from __future__ import annotations

from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsExpired,
    PenstockError,
    StorageFull,
    SystemUnavailable,
)

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_DENIED = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled", "403"})
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "507"})
_SAFE = "nothing that is not decided is visible, and what is decided is completed by the next try."


def translated(error: Exception, what: str) -> PenstockError | None:
    """The error of ours; None for one that is neither S3's nor its library's."""
    from botocore import exceptions as library

    if isinstance(error, library.ClientError):
        return _of_code(str(error.response.get("Error", {}).get("Code", "")), error, what)
    if isinstance(error, (library.NoCredentialsError, library.PartialCredentialsError)):
        return _denied(error, what)
    if isinstance(error, (library.BotoCoreError, library.HTTPClientError)):
        return SystemUnavailable(
            f"S3 could not be reached while {what}: {error}.",
            safe=_SAFE,
            to_do="see that the endpoint and region are right and answer; the job tries again by its restart strategy.",
        )
    return None


def _of_code(code: str, error: Exception, what: str) -> PenstockError:
    if code in _EXPIRED:
        return CredentialsExpired(
            f"The keys for S3 have expired while {what}: {error}.",
            safe=_SAFE,
            to_do="renew them where the AWS libraries find them; the next try looks there again.",
        )
    if code in _DENIED:
        return _denied(error, what)
    if code == "NoSuchBucket":
        return ConfigurationError(
            f"There is no such bucket, while {what}.", safe=_SAFE, to_do="create the bucket, or name another."
        )
    if code in _FULL:
        return StorageFull(
            f"No space is left in the bucket while {what}: {error}.",
            safe=_SAFE,
            to_do="free space or raise the quota; the job goes on from the same positions.",
        )
    return SystemUnavailable(
        f"S3 refused while {what}: {error}.",
        safe=_SAFE,
        to_do="nothing if it was busy for a moment: the job tries again by its restart strategy; else read its answer.",
    )


def _denied(error: Exception, what: str) -> AccessDenied:
    return AccessDenied(
        f"S3 refused access while {what}: {error}.",
        safe=_SAFE,
        to_do="see that the AWS libraries find keys where the driver and the workers run, and that these may read, "
        "write, delete and list objects and list and abort multipart uploads in the bucket.",
    )
