"""Objects of a store, for a pod with its credentials.

python stores.py put URL FILE      upload a file to URL
python stores.py list URL          print the paths below URL, sorted
python stores.py damage URL        remove the last byte of the object at URL, and keep a copy
python stores.py repair URL        put the copy back
"""

import sys
from pathlib import Path

import obstore
from obstore.store import from_url

COPY = Path("/ledger/copy")


def main(verb: str, url: str, *rest: str) -> None:
    folder, _, name = url.rpartition("/")
    store = from_url(folder)
    if verb == "put":
        obstore.put(store, name, Path(rest[0]).read_bytes())
    elif verb == "list":
        found = [str(one["path"]) for batch in obstore.list(store) for one in batch]
        sys.stdout.write("".join(f"{path}\n" for path in sorted(found)))
    elif verb == "damage":
        COPY.write_bytes(bytes(obstore.get(store, name).bytes()))
        obstore.put(store, name, COPY.read_bytes()[:-1])
    elif verb == "repair":
        obstore.put(store, name, COPY.read_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
