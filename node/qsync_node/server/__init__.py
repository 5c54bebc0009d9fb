"""The asyncio shell: performs the effects of the core and feeds it inputs."""
