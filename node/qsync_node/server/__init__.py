"""The asyncio shell of the core: feeds it inputs and performs its effects."""
