"""Consensus of one replica set: elections, the replicated log, its confirmation and membership.

Everything here decides without I/O and without a database. `Replica` joins the components, which
share a `Context`; they require `interfaces.StateMachine` of the database above them.
"""
