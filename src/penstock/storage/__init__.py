"""Where files are kept, and what a power cut leaves of them.

| interface | for | places |
|---|---|---|
| `storage.Storage` | small sealed files, each created once and whole | `local`, `hadoop`, memory for tests |
| `tree.Tree` | files of any size: written, synced, renamed, linked, copied, deleted | `local`, `hadoop` |

`s3` is objects and multipart uploads, for the file sink. `local` also leads from a location to a storage or a tree,
and has folders of this user alone; `durable` is how names and bytes get onto a disk.
"""
