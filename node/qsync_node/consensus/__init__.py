"""Consensus of one replica set: elections, the replicated log, its confirmation and membership.

Everything here decides without I/O and without a database. `Replica` joins the components, which
share a `Context`; `interfaces.StateMachine` is what they require of the database above them.
"""
