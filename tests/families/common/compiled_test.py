"""While something is compiled no garbage is searched for; afterwards it is as before."""

import gc
import threading

import pytest

from custom_inference.families.common import compiled

SEEN: list[bool] = []


def compiled_here(number):
    """Something new to compile that notes whether garbage is collected meanwhile."""
    from numba.extending import overload

    def noted():
        """Of Python."""

    @overload(noted)
    def _():
        SEEN.append(gc.isenabled())
        return lambda: number

    return compiled.part(lambda: noted())


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_waits_for_the_compiler(enabled):
    SEEN.clear()
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        assert compiled_here(3)() == 3 and SEEN and not any(SEEN)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_errors_of_the_compiler_leave_it_as_it_was():
    function = compiled.part(lambda x: x.no_such_attribute)
    with pytest.raises(Exception, match="no_such_attribute"):
        function(1.0)
    assert gc.isenabled()


def test_of_several_threads_the_last_one_resumes():
    functions = [compiled_here(number) for number in range(4)]
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled() and [function() for function in functions] == [0, 1, 2, 3]


def test_divisions_by_zero_are_infinite():
    assert compiled.part(lambda x: 1.0 / x)(0.0) == float("inf")
