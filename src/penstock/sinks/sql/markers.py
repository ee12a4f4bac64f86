"""How a commit is proven: a marker row, written in the very transaction that makes a writer's rows visible.

    penstock_markers   one row for each writer whose rows are visible (sink, writer, epoch, generation, at)
    penstock_sinks     one row for each sink (sink, generation, fence, pruned)

| in the database | means |
|---|---|
| the marker | committed, whatever else is there |
| no marker, and the writer's transaction or staging table is there | prepared: commit it now |
| neither, and the writer is younger than `pruned` | lost: it was rolled back, and nothing of it is visible |
| neither, and it is not younger | unknown: its marker may have been pruned long ago |

`at` is the server's time at which the writer began; its committable carries it too. `pruned` is the largest `at` of all
markers ever pruned for this sink, at first the time when its row was made: should somebody drop these tables, they are
made anew, and what was before is unknown, not lost. So a missing marker of a younger writer was never there.

`fence` counts the sweeps of a sink. A sweep raises it before it ends sessions and looks for leftovers; a writer
compares it, as its last step before it prepares, with the one its driver saw. So a writer that was already connected
is ended by the sweep, and one that comes later refuses itself. `generation` is that of the newest run that swept:
an older run does not raise the fence, so it never disturbs a newer one.
"""

from __future__ import annotations

MARKERS = "penstock_markers"
SINKS = "penstock_sinks"

#: Epochs whose markers are kept. Only of the last one, or of those in the in-flight log, will anyone ask again.
KEPT_EPOCHS = 64
#: Markers are pruned once in so many epochs: a delete is not free.
PRUNE_EVERY = 16
