"""What a job keeps: savepoints, restoring from them, and Spark's state read and rewritten."""
