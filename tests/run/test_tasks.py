import asyncio

import pytest

from loadgen.run.tasks import background, finished_or


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise ValueError("beside")


async def test_what_runs_beside_a_block_ends_with_it() -> None:
    ended: list[str] = []

    async def noted() -> None:
        try:
            await forever()
        finally:
            ended.append("cancelled")

    async with background(noted()):
        await asyncio.sleep(0)
    assert ended == ["cancelled"]


async def test_an_error_beside_a_block_ends_the_block_with_it() -> None:
    with pytest.raises(ValueError, match="beside"):
        async with background(failing(), forever()):
            await forever()
    # The caller itself was not cancelled.
    await asyncio.sleep(0)
    with pytest.raises(KeyError):
        async with background(forever()):
            raise KeyError("the block's own error is not wrapped")


async def test_work_that_ends_before_any_event_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert (await finished_or(work(), asyncio.Event())).result() == 7
    assert isinstance((await finished_or(failing(), asyncio.Event())).exception(), ValueError)


async def test_work_is_cancelled_by_the_first_event() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(second.set)
    assert (await finished_or(forever(), first, second)).cancelled()
