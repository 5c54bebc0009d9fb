"""The HTTP interface of a broker: PUT appends, GET reads, HEAD describes a journal.

The path is the journal's name. POST carries out a batch of appends (`qsync_broker.batch`).

It follows Gazette's gateway (same headers and query arguments). Statuses of appends have HTTP codes
of their own. The body of each error is one line: what failed, the cause, and what to do. There are
more headers:

    X-Offset                offset at which the append must begin
    X-Suspend               effect of the append on the journal's suspension
    X-Registers-Check       selector that the registers must match
    X-Registers-Union       registers to add, as NAME=VALUE separated by commas
    X-Registers-Subtract    registers to remove, in the same form
    X-Accept-Loss           `true` accepts that acknowledged bytes are lost (`qsync_broker.loss`)
    X-Loss                  of an answer: what such a request must name, as JSON
    X-Registers             of an answer: the registers after the append
    X-Suspended             of an answer: level of the suspension that the append has asked for
"""
