"""`qsync status`: a cluster, or what one node says of itself."""

from qsync_cli.options import AddressOption, LocalOption, Output, OutputOption, SecretOption
from qsync_cli.output import print_document, print_table


def status(
    local: LocalOption = None,
    address: AddressOption = None,
    secret: SecretOption = None,
    output: OutputOption = None,
) -> None:
    """Show a cluster's members, or one node's view of itself."""
    from qsync_cli.targets import ask, resolve  # noqa: PLC0415

    target = resolve(local, address, secret)
    if local is not None:
        from qsync_cli.local.status import status as local_status  # noqa: PLC0415

        local_status(local, output)
        return
    said = ask(target, lambda links: links.status(target.addresses[""]))
    if output in (Output.json, Output.yaml):
        print_document(said, output)
        return
    shown = ("name", "role", "address", "term", "confirmed_index", "leader_name", "ro_reason")
    print_table([f.upper().replace("_", " ") for f in shown], [[str(said[f]) for f in shown]])
