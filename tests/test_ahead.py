"""Work done ahead on a thread: in order, left where nobody needs it, and never in the way."""

import threading

import pytest

from posjax.ahead import Ahead


def test_in_order_and_done_when_dropped():
    found = []
    with Ahead() as ahead:
        for number in range(3):
            ahead.ask('a', found.append, number)
        ahead.ask('b', found.append, 3)
        ahead.ask('b', found.append, 4)
        ahead.drop('unknown')
    # Nothing that had not begun is begun at the end.
    assert found == list(range(len(found)))


def test_what_is_dropped_has_ended_or_never_begins():
    begun, end, found = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        end.wait(10)
        found.append('slow')

    with Ahead() as ahead:
        ahead.ask('a', slow)
        ahead.ask('a', found.append, 'never')
        ahead.ask('b', found.append, 'b')
        assert begun.wait(10)
        threading.Timer(0.05, end.set).start()
        ahead.drop('a')
        assert found[0] == 'slow' and 'never' not in found
        ahead.ask('b', lambda: None)
        ahead.drop('b')
    assert 'never' not in found


def test_an_error_is_left_to_who_needs_the_program():
    found = []
    with Ahead() as ahead:
        ahead.ask('a', lambda: 1 / 0)
        done = threading.Event()
        ahead.ask('b', done.set)
        assert done.wait(10)
        ahead.drop('a')
        found.append('still here')
    assert found


def test_an_error_of_the_caller_stops_what_was_asked():
    begun, end, found = threading.Event(), threading.Event(), []
    with pytest.raises(KeyboardInterrupt), Ahead() as ahead:
        ahead.ask('a', lambda: (begun.set(), end.wait(10)))
        ahead.ask('a', found.append, 'never')
        assert begun.wait(10)
        threading.Timer(0.05, end.set).start()
        raise KeyboardInterrupt
    assert not found


def test_off_it_does_nothing():
    found = []
    with Ahead(active=False) as ahead:
        ahead.ask('a', found.append, 1)
        ahead.drop('a')
    assert not found
