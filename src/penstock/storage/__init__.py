"""Where files are kept, and what a power cut leaves of them.

| interface | for | places |
|---|---|---|
| `storage.Storage` | small sealed files, each created once and whole | `local`, `hadoop`, memory for tests |
| `tree.Tree` | files of any size: written, synced, renamed, linked, copied, deleted | `local`, `hadoop`, `arrow` |

`s3` is objects and multipart uploads, for the file sink; `s3_faults` names what S3 refuses.

`open` leads from a location to either; `durable` is how names and bytes get onto a disk; `probe` finds out whether a
storage creates as it says; `private` is for folders of this user alone.

May import: `errors`, `failpoints`, `safe_names`, and nothing above.
"""
