"""Every SQL statement of the system; one verb a file: the statement, then a short function.

What holds for all of them:

- A lease is a row. Only PostgreSQL's clock (`clock_timestamp()`) decides whether it has expired.
- A claim writes the lease's id into the task and raises `attempt`; (task, attempt, lease) is the fence. Whoever ends an
  attempt must match it on the locked, newest version of the row. So a late writer is refused, whatever it believes.
- Each verb is one autocommit statement at READ COMMITTED. A client that freezes never holds a lock.
- Task rows are locked by primary key in the order of their ids, with SKIP LOCKED where many are taken: no two
  statements deadlock, and no stranger's lock holds up a batch.
- A lease row is locked FOR KEY SHARE by a claim, FOR NO KEY UPDATE by its renewal, and FOR UPDATE by whoever ends it:
  the end waits for a claim in flight, the heartbeat does not.
- A query that locks tests nothing but the rows that it locks; another table's word may be older than the lock.
- Whatever is counted is counted in the statement that causes it.
"""
