"""Other task queues on PostgreSQL, measured beside fleet by one procedure.

`install.py` gives each its own virtual environment, `compare.py` lets them take turns, `side.py` is the procedure: it runs
under each system's own interpreter and drives one of the `*_side.py`, which say how that system is used.
"""
