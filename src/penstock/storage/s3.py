"""Objects and multipart uploads below one prefix of an S3 bucket, from any process.

Keys come from where the AWS libraries look: environment, shared files, web identity, container and instance. They are
never an argument here, so they reach no ledger and no log. A client is made once for a process, and made anew when its
keys have expired, so that keys which are renewed outside are found without a restart.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from penstock import errors
from penstock.naming import safe_name

SCHEMES = frozenset({"s3", "s3a"})
MARK = "penstock-writer"  # the object's metadata that tells whose upload it was

_GONE = frozenset({"NoSuchUpload", "NoSuchKey", "NotFound", "404"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_DENIED = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled", "403"})
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "507"})
_SAFE = "nothing that is not decided is visible, and what is decided is completed by the next try."
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_ATTEMPTS = 4  # of one request, with a growing pause of some seconds: so a store that asks to slow down is answered

_Answer = TypeVar("_Answer")
_clients: dict[tuple[int, str | None, str | None], Any] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that is open; `started` in seconds since 1970."""

    name: str
    id: str
    started: float


def s3_address(path: str) -> str | None:
    """`path` as `s3://bucket/prefix`, or None where it is no address of S3."""
    parts = urlsplit(path)
    if parts.scheme not in SCHEMES or "://" not in path:
        return None
    if not parts.netloc or "@" in parts.netloc:
        raise errors.ConfigurationError(
            f"{path} does not name a bucket and nothing else before its first slash.",
            to_do="write s3://bucket/folder; keys belong where the AWS libraries look for them, not in an address.",
        )
    return f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")


class S3Folder:
    """What is below one prefix. Names are relative to it. Every method raises errors of ours."""

    def __init__(self, address: str, *, endpoint: str | None = None, region: str | None = None) -> None:
        parts = urlsplit(address)
        self.location, self.bucket = address, parts.netloc
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        self._endpoint, self._region = endpoint, region

    # Objects

    def put(self, name: str, data: bytes) -> None:
        """Whole and durable on return, over what was there."""
        with self._errors(f"writing {name}") as client:
            client.put_object(**self._at(name), Body=data, ContentMD5=_md5(data))

    def read(self, name: str) -> bytes | None:
        at = self._at(name)
        return self._unless_gone(f"reading {name}", lambda s3: bytes(s3.get_object(**at)["Body"].read()))

    def mark(self, name: str) -> str | None:
        """Whose upload the object was, "" where that is not known; None where there is no object."""
        at = self._at(name)
        return self._unless_gone(
            f"looking at {name}", lambda s3: str(s3.head_object(**at).get("Metadata", {}).get(MARK, ""))
        )

    def remove(self, name: str) -> None:
        with self._errors(f"deleting {name}") as client:
            client.delete_object(**self._at(name))

    def names(self, start: str) -> list[str]:
        """Of all objects whose names begin so."""
        with self._errors(f"listing {start}") as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._prefix + start)
            return [self._name(entry["Key"]) for page in pages for entry in page.get("Contents", ())]

    # Multipart uploads

    def begin(self, name: str, mark: str) -> str:
        """The id of a new upload. Nothing of it is visible before it is completed."""
        with self._errors(f"beginning an upload of {name}") as client:
            return str(client.create_multipart_upload(**self._at(name), Metadata={MARK: mark})["UploadId"])

    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str | None:
        """The part's tag; None where the upload was ended meanwhile."""
        part = {**self._at(name), "UploadId": upload, "PartNumber": number, "Body": data, "ContentMD5": _md5(data)}
        return self._unless_gone(f"uploading part {number} of {name}", lambda s3: str(s3.upload_part(**part)["ETag"]))

    def parts(self, name: str, upload: str) -> list[str] | None:
        """The tags of the parts that an open upload has, in order; None where it is not open."""

        def list_parts(s3: Any) -> list[str]:
            pages = s3.get_paginator("list_parts").paginate(**self._at(name), UploadId=upload)
            return [part["ETag"] for page in pages for part in page.get("Parts", ())]

        return self._unless_gone(f"looking at the upload of {name}", list_parts)

    def complete(self, name: str, upload: str, etags: Sequence[str]) -> bool:
        """Make the object visible, in one step; False where there is no such upload (any more)."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        request = {**self._at(name), "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        what = f"completing the upload of {name}"
        return self._unless_gone(what, lambda s3: s3.complete_multipart_upload(**request)) is not None

    def abort(self, name: str, upload: str) -> None:
        """The upload is ended and can never be completed; no error where it was ended before."""
        request = {**self._at(name), "UploadId": upload}
        self._unless_gone(f"aborting the upload of {name}", lambda s3: s3.abort_multipart_upload(**request))

    def uploads(self, start: str, most: int | None = None) -> list[Upload]:
        """The open ones whose names begin so."""
        with self._errors("listing uploads") as client:
            pages = client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self._prefix + start, PaginationConfig={"MaxItems": most}
            )
            return [
                Upload(self._name(upload["Key"]), upload["UploadId"], upload["Initiated"].timestamp())
                for page in pages
                for upload in page.get("Uploads", ())
                if upload["Key"].startswith(self._prefix + start)
            ]

    def days_until_aborted(self) -> int | None:
        """The least number of days after which a rule of the bucket ends uploads in here; None where there is no such
        rule, or the bucket does not say."""
        with contextlib.suppress(errors.PenstockError), self._errors("reading the bucket's rules") as client:
            try:
                rules = client.get_bucket_lifecycle_configuration(Bucket=self.bucket).get("Rules", ())
            except client.exceptions.ClientError:
                return None
            days = [
                int(rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"])
                for rule in rules
                if rule.get("Status") == "Enabled"
                and "AbortIncompleteMultipartUpload" in rule
                and _meet(self._prefix, (rule.get("Filter") or {}).get("Prefix") or rule.get("Prefix") or "")
            ]
            return min(days, default=None)
        return None

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._prefix + safe_name(name, self.location)}

    def _name(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[Any]:
        """A client, whose refusals become ours."""
        client = self._client()
        try:
            yield client
        except Exception as error:
            ours = translated(error, f"{what} in {self.location}")
            if ours is None:
                raise
            if isinstance(ours, errors.CredentialsExpired):
                with _lock:
                    _clients.pop((os.getpid(), self._endpoint, self._region), None)
            raise ours from error

    def _unless_gone(self, what: str, ask: Callable[[Any], _Answer]) -> _Answer | None:
        """S3's answer; None where it says that there is no such object or upload. A missing bucket is an error."""
        with self._errors(what) as client:
            try:
                return ask(client)
            except client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _GONE:
                    raise
                return None

    def _client(self) -> Any:
        key = (os.getpid(), self._endpoint, self._region)  # a forked worker must not share its parent's connections
        with _lock:
            if key not in _clients:
                _clients[key] = _connect(self._endpoint, self._region)
            return _clients[key]


def _connect(endpoint: str | None, region: str | None) -> Any:
    with errors.MissingExtra.named("S3", "s3"):
        import boto3
        from botocore.config import Config
    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=16,
        # Otherwise a CRC32 goes with every part, in a trailer that stores other than Amazon's may refuse. What every
        # store compares a body with is its MD5, see `_md5`.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # A session of its own: the library's default one keeps the keys that it found first.
    return boto3.session.Session().client("s3", endpoint_url=endpoint, region_name=region, config=config)


def _md5(data: bytes) -> str:
    """So that a body altered on its way is refused; buckets with an object lock take none without."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _meet(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def translated(error: Exception, what: str) -> errors.PenstockError | None:
    """The error of ours; None for one that is neither S3's nor its library's."""
    from botocore import exceptions as library

    if isinstance(error, library.ClientError):
        return _of_code(str(error.response.get("Error", {}).get("Code", "")), error, what)
    if isinstance(error, (library.NoCredentialsError, library.PartialCredentialsError)):
        return _denied(error, what)
    if isinstance(error, (library.BotoCoreError, library.HTTPClientError)):
        return errors.SystemUnavailable(
            f"S3 could not be reached while {what}: {error}.",
            safe=_SAFE,
            to_do="see that the endpoint and region are right and answer; the job tries again by its restart strategy.",
        )
    return None


def _of_code(code: str, error: Exception, what: str) -> errors.PenstockError:
    if code in _EXPIRED:
        return errors.CredentialsExpired(
            f"The keys for S3 have expired while {what}: {error}.",
            safe=_SAFE,
            to_do="renew them where the AWS libraries find them; the next try looks there again.",
        )
    if code in _DENIED:
        return _denied(error, what)
    if code == "NoSuchBucket":
        return errors.ConfigurationError(
            f"There is no such bucket, while {what}.", safe=_SAFE, to_do="create the bucket, or name another."
        )
    if code in _FULL:
        return errors.StorageFull(
            f"No space is left in the bucket while {what}: {error}.",
            safe=_SAFE,
            to_do="free space or raise the quota; the job goes on from the same positions.",
        )
    return errors.SystemUnavailable(
        f"S3 refused while {what}: {error}.",
        safe=_SAFE,
        to_do="nothing if it was busy for a moment: the job tries again by its restart strategy; else read its answer.",
    )


def _denied(error: Exception, what: str) -> errors.AccessDenied:
    return errors.AccessDenied(
        f"S3 refused access while {what}: {error}.",
        safe=_SAFE,
        to_do="see that the AWS libraries find keys where the driver and the workers run, and that these may read, "
        "write, delete and list objects and list and abort multipart uploads in the bucket.",
    )
