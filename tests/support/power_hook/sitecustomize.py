"""Python imports this module by itself where its folder is on the path: so every process of a job, workers too, records
its syncs."""

import os

if "PENSTOCK_TEST_POWER" in os.environ:
    from tests.support.power_record import install

    install()
