"""`helm test`: checks that the operator's account reaches the API server and may read clusters.

python -m qsync_operator.chart_test NAMESPACE...
"""

import asyncio
import sys

from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.client import KubernetesApi


async def _observe(namespaces: list[str]) -> int:
    api = await KubernetesApi.connect()
    try:
        for namespace in namespaces:
            found = await api.find("QsyncCluster", namespace)
            sys.stdout.write(f"{namespace}: {len(found)} clusters\n")
    except ApiError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        await api.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_observe(sys.argv[1:])))
