"""System calls of compiled code, at the cost of C; each returns its result, or minus errno.

Linux only: the numbers are those of <sys/epoll.h>, <sys/socket.h>, <netinet/in.h> and
<sys/timerfd.h>; `struct epoll_event` is packed on x86-64 alone.
"""

import errno
import platform
import socket
from typing import Any

import numpy as np
from numba import types
from numba.core.extending import intrinsic

from loadgen.kernels.arrays import Bytes, Int32s, Int64s
from loadgen.kernels.compiled import compiled

EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP = 0x1, 0x4, 0x8, 0x10, 0x2000
EPOLLET = -0x80000000  # bit 31 of a signed word
_EPOLL_CTL_ADD = 1

_PACKED = platform.machine() in ("x86_64", "AMD64")
EVENT_WORDS = 3 if _PACKED else 4  # 32-bit words of one `struct epoll_event`
EVENT_DATA = 1 if _PACKED else 2  # word with the low half of its data

ACCOUNT_BYTES = 64  # for three numbers, and some more
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
CLOCK_OFFSET = 4  # of the run's clock from this host's, after two `struct timespec`
CLOCK_WORDS = CLOCK_OFFSET + 1
_TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_TFD_TIMER_ABSTIME = 1
_MSG = 0x40 | 0x4000  # MSG_DONTWAIT | MSG_NOSIGNAL
_SOCK_STREAM_FLAGS = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_FEW_BYTES = 2_048
_SEGMENT_BYTES = 1_448
_SO_TIMESTAMPNS = 35
_STAMP_BYTES = 32  # a control message with a struct timespec
_STAMP_KIND = int(np.array([socket.SOL_SOCKET, _SO_TIMESTAMPNS], np.int32).view(np.int64)[0])
# Where in the scratch of `receive_timed` its parts begin: struct msghdr (seven words, on every
# 64-bit Linux), struct iovec, room for one control message, a struct timespec.
_MESSAGE, _IOVEC, _CONTROL, _TIME = 0, 7, 9, 17
_CONTROL_BYTES = 8 * (_TIME - _CONTROL)
MESSAGE_WORDS = _TIME + 2  # 64-bit words that `receive_timed` and `age_ns` need
_IP_BIND_ADDRESS_NO_PORT = 24
_IP_LOCAL_PORT_RANGE = 51
_WHOLE_RANGE = -65536  # 65535 << 16: no narrower than the host's

_address = types.uintp
_int = types.int32
_int_pointer: Any = types.CPointer(types.int32)  # type: ignore[no-untyped-call]


def _external(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, result(*arguments))


_errno_location = _external("__errno_location", _int_pointer)
_epoll_wait = _external("epoll_wait", _int, _int, _address, _int, _int)
_epoll_ctl = _external("epoll_ctl", _int, _int, _int, _int, _address)
_pread = _external("pread", types.intp, _int, _address, types.uintp, types.int64)
_recv = _external("recv", types.intp, _int, _address, types.uintp, _int)
_recvmsg = _external("recvmsg", types.intp, _int, _address, _int)
_send = _external("send", types.intp, _int, _address, types.uintp, _int)
_socket = _external("socket", _int, _int, _int, _int)
_accept = _external("accept4", _int, _int, _address, _address, _int)
_bind = _external("bind", _int, _int, _address, types.uint32)
_connect = _external("connect", _int, _int, _address, types.uint32)
close_descriptor = _external("close", _int, _int)
_getsockopt = _external("getsockopt", _int, _int, _int, _int, _address, _address)
_setsockopt = _external("setsockopt", _int, _int, _int, _int, _address, types.uint32)
_clock_gettime = _external("clock_gettime", _int, _int, _address)
_timerfd_create = _external("timerfd_create", _int, _int, _int)
_timerfd_settime = _external("timerfd_settime", _int, _int, _int, _address, _address)
_realloc = _external("realloc", types.intp, _address, types.uintp)
free_memory = _external("free", types.void, _address)
move_memory = _external("memmove", types.intp, _address, _address, types.uintp)


@intrinsic
def _number_at(_typing: Any, _pointer: Any) -> Any:
    """Return the 32-bit number at a C pointer."""
    return types.int32(_int_pointer), lambda _c, builder, _s, values: builder.load(values[0])


@compiled
def _result(value: int) -> int:
    if value < 0:
        return -int(np.int64(_number_at(_errno_location())))  # type: ignore[call-arg]
    return int(np.int64(value))


@compiled
def monotonic_ns(scratch: Int64s) -> int:
    """Return the run's clock (clock.py) in ns; `scratch` has CLOCK_WORDS numbers."""
    _clock_gettime(_CLOCK_MONOTONIC, scratch.ctypes.data)
    return int(scratch[0] * 1_000_000_000 + scratch[1] + scratch[CLOCK_OFFSET])


@compiled
def wait_events(epoll: int, events: Int32s, limit: int, timeout_ms: int) -> int:
    """Call epoll_wait; return the number of events, of EVENT_WORDS words each."""
    return _result(_epoll_wait(epoll, events.ctypes.data, limit, timeout_ms))


@compiled
def watch(epoll: int, descriptor: int, flags: int, data: int, scratch: Int32s) -> int:
    """Add a descriptor to an epoll set; `scratch` has EVENT_WORDS words."""
    for word in range(EVENT_WORDS):
        scratch[word] = 0
    scratch[0] = flags
    scratch[EVENT_DATA] = data
    return _result(_epoll_ctl(epoll, _EPOLL_CTL_ADD, descriptor, scratch.ctypes.data))


@compiled
def receive_into(descriptor: int, buffer: Bytes, start: int, end: int) -> int:
    return _result(_recv(descriptor, buffer.ctypes.data + start, end - start, _MSG))


@compiled
def receive_timed(descriptor: int, buffer: Bytes, start: int, end: int, scratch: Int64s) -> int:
    """Call recvmsg for buffer[start:end]; `age_ns` then returns the age of the last byte."""
    address = scratch.ctypes.data
    scratch[_MESSAGE] = 0
    scratch[_MESSAGE + 1] = 0
    scratch[_MESSAGE + 2] = address + 8 * _IOVEC
    scratch[_MESSAGE + 3] = 1
    scratch[_MESSAGE + 4] = address + 8 * _CONTROL
    scratch[_MESSAGE + 5] = _CONTROL_BYTES
    scratch[_MESSAGE + 6] = 0
    scratch[_IOVEC] = buffer.ctypes.data + start
    scratch[_IOVEC + 1] = end - start
    scratch[_CONTROL + 1] = 0
    return _result(_recvmsg(descriptor, address, _MSG))


@compiled
def age_ns(scratch: Int64s) -> int:
    """Return the age of the last bytes of `receive_timed`; -1 if the kernel reported no time."""
    if scratch[_MESSAGE + 5] < _STAMP_BYTES or scratch[_CONTROL + 1] != _STAMP_KIND:
        return -1
    _clock_gettime(_CLOCK_REALTIME, scratch.ctypes.data + 8 * _TIME)
    seconds = scratch[_TIME] - scratch[_CONTROL + 2]
    return int(max(seconds * 1_000_000_000 + scratch[_TIME + 1] - scratch[_CONTROL + 3], 0))


@compiled
def send_from(descriptor: int, buffer: Bytes, start: int, end: int) -> int:
    return _result(_send(descriptor, buffer.ctypes.data + start, end - start, _MSG))


@compiled
def send_memory(descriptor: int, address: int, count: int) -> int:
    return _result(_send(descriptor, address, count, _MSG))


@compiled
def resize_memory(address: int, count: int) -> int:
    """Return the address of `count` bytes that begin with those at `address`, which may be 0."""
    return int(np.int64(_realloc(address, count)))


@compiled
def set_option(descriptor: int, level: int, option: int, value: int, scratch: Int32s) -> int:
    """Call setsockopt with a 32-bit number."""
    scratch[0] = value
    return _result(_setsockopt(descriptor, level, option, scratch.ctypes.data, 4))


@compiled
def open_socket(family: int, source: Bytes, few_bytes: bool, scratch: Int32s) -> int:
    """Return a non-blocking TCP socket without Nagle's delay, bound to `source` if it is not empty.

    `source` is a sockaddr with port 0. The port is chosen at connect, so that an address serves as
    many connections as there are ports to each destination. Without a port range (ip(7), since
    Linux 6.3), each connect tries half of all ports again, in 750 µs instead of 17, once those of
    one parity are used. `few_bytes` makes the buffers of both kernels small; the sender's depends
    on the largest segment.
    """
    descriptor = _result(_socket(family, _SOCK_STREAM_FLAGS, 0))
    if descriptor < 0:
        return descriptor
    set_option(descriptor, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1, scratch)
    set_option(descriptor, socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, _WHOLE_RANGE, scratch)
    set_option(descriptor, socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1, scratch)
    if few_bytes:
        set_option(descriptor, socket.SOL_SOCKET, socket.SO_RCVBUF, _FEW_BYTES, scratch)
        set_option(descriptor, socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES, scratch)
    if len(source) > 0:
        set_option(descriptor, socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1, scratch)
        bound = _result(_bind(descriptor, source.ctypes.data, len(source)))
        if bound < 0:
            close_descriptor(descriptor)
            return bound
    return descriptor


@compiled
def accept_socket(listener: int) -> int:
    """Return the next connection of a listener, non-blocking and with the listener's options."""
    return _result(_accept(listener, 0, 0, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC))


@compiled
def connect_socket(descriptor: int, address: Bytes) -> int:
    """Begin to connect; return 0 if it has begun or is done."""
    result = _result(_connect(descriptor, address.ctypes.data, len(address)))
    return 0 if result == -errno.EINPROGRESS else result


@compiled
def socket_error(descriptor: int, scratch: Int32s) -> int:
    """Return the pending error of a socket (SO_ERROR), 0 for none."""
    scratch[0] = 0
    scratch[1] = 4
    start = scratch.ctypes.data
    _getsockopt(descriptor, socket.SOL_SOCKET, socket.SO_ERROR, start, start + 4)
    return int(np.int64(scratch[0]))


@compiled
def processor_times(account: int, scratch: Bytes) -> tuple[int, int]:
    """Return ns on a processor, and waiting for one, from a /proc/.../schedstat, else (0, 0)."""
    got = _result(_pread(account, scratch.ctypes.data, ACCOUNT_BYTES, 0))
    busy_ns = 0
    number = 0
    for position in range(max(got, 0)):
        figure = int(np.int64(scratch[position])) - 48
        if figure >= 0:
            number = number * 10 + figure
        elif busy_ns > 0:
            return busy_ns, number
        else:
            busy_ns, number = number, 0
    return 0, 0


@compiled
def make_timer() -> int:
    return _result(_timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC))


@compiled
def arm_timer(timer: int, moment_ns: int, scratch: Int64s) -> int:
    """Make the timer readable at `moment_ns` of the run's clock, or disarm it if that is 0.

    A moment may be negative. `scratch` is that of `monotonic_ns`. Arming discards an expiry that
    was not read, so the timer is never read.
    """
    scratch[0] = 0
    scratch[1] = 0
    if moment_ns != 0:
        moment_ns = max(moment_ns - scratch[CLOCK_OFFSET], 1)
    scratch[2] = moment_ns // 1_000_000_000
    scratch[3] = moment_ns % 1_000_000_000
    return _result(_timerfd_settime(timer, _TFD_TIMER_ABSTIME, scratch.ctypes.data, 0))
