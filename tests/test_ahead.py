"""Work done ahead on a thread: in order, left where nobody needs it, and never in the way."""

import threading

import pytest

from posjax.ahead import Ahead


def test_in_order():
    found, done = [], threading.Event()
    with Ahead() as ahead:
        for number in range(3):
            ahead.later('a', found.append, number)
        ahead.later('b', done.set)
        assert done.wait(10)
        ahead.drop('unknown')
    assert found == [0, 1, 2]


def test_what_is_dropped_has_ended_or_never_begins():
    begun, end, found = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        end.wait(10)
        found.append('slow')

    with Ahead() as ahead:
        ahead.later('a', slow)
        ahead.later('a', found.append, 'never')
        ahead.later('b', found.append, 'b')
        assert begun.wait(10)
        threading.Timer(0.05, end.set).start()
        ahead.drop('a')
        assert found[0] == 'slow' and 'never' not in found
        ahead.later('b', lambda: None)
        ahead.drop('b')
    assert 'never' not in found


def test_an_error_is_logged_and_what_follows_is_done(caplog):
    done = threading.Event()
    with caplog.at_level('DEBUG', 'posjax.ahead'), Ahead() as ahead:
        ahead.later('a', lambda: 1 / 0)
        ahead.later('b', done.set)
        assert done.wait(10)
        ahead.drop('a')
    assert 'ZeroDivisionError' in caplog.text


def test_an_error_of_the_caller_stops_what_was_asked():
    begun, end, found = threading.Event(), threading.Event(), []
    with pytest.raises(KeyboardInterrupt), Ahead() as ahead:
        ahead.later('a', lambda: (begun.set(), end.wait(10)))
        ahead.later('a', found.append, 'never')
        assert begun.wait(10)
        threading.Timer(0.05, end.set).start()
        raise KeyboardInterrupt
    assert not found


def test_off_it_does_nothing():
    found = []
    with Ahead(active=False) as ahead:
        ahead.later('a', found.append, 1)
        ahead.drop('a')
    assert not found
