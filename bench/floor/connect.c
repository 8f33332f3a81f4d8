/* connect: opens connections as fast as the broker takes them, with so many in flight, and
 * holds them. Per connection: socket, connect, epoll, send CONNECT, recv CONNACK. */
#include "common.h"

enum { EVENTS_A_WAIT = 512 };

struct device {
    uint64_t started_ns;
    uint32_t index;
    uint32_t have;  /* bytes of CONNACK */
    uint8_t ack[5]; /* the first of them */
    bool sent, connected;
};

/* Reasons of failure, in the order of `failures`. */
enum reason { REFUSED, TIMED_OUT, RESET, NO_PORT, REJECTED, OTHER, REASONS };
static const char *const reason_names[REASONS] = {"refused", "timed_out", "reset",
                                                  "no_port", "rejected",  "other"};

static enum reason reason_of(int number)
{
    switch (number) {
    case ECONNREFUSED: return REFUSED;
    case ETIMEDOUT: return TIMED_OUT;
    case 0: /* closed before CONNACK */
    case EPIPE:
    case ECONNRESET: return RESET;
    case EADDRNOTAVAIL: return NO_PORT;
    default: return OTHER;
    }
}

/* Bytes that CONNACK has in all; 0 while unknown, -1 when this is no CONNACK. */
static long connack_bytes(const struct device *device)
{
    uint32_t body, seen = device->have < 5 ? device->have : 5;
    int digits;
    if (seen && device->ack[0] != 0x20)
        return -1;
    if (seen < 2)
        return 0;
    digits = get_length(device->ack + 1, seen - 1, &body);
    if (digits < 0 || (digits > 0 && (digits > 2 || body < 2)))
        return -1;
    return digits ? 1 + digits + (long)body : 0;
}

/* The code is the second byte of the body. */
static uint8_t connack_code(const struct device *device)
{
    return device->ack[device->ack[1] & 0x80 ? 4 : 3];
}

int main(int argc, char **argv)
{
    struct usage started = usage_now(), from, to;
    const char *host = "127.0.0.1", *source = NULL, *mqtt = "3.1.1";
    long port = 18830, ports = 1, connections = 1000, in_flight_max = 64, base_rss, full_rss;
    double hold = 0, seconds = 120;
    const struct option_row rows[] = {
        {"host", 's', &host, 0, 0, "broker"},
        {"port", 'n', &port, 1, 65535, "its first port"},
        {"ports", 'n', &ports, 1, 65535, "consecutive ports, taken in turn"},
        {"source-address", 's', &source, 0, 0, "local address to connect from"},
        {"mqtt", 's', &mqtt, 0, 0, "3.1.1 or 5"},
        {"connections", 'n', &connections, 1, 1e6, "how many"},
        {"in-flight", 'n', &in_flight_max, 1, 1e5, "how many at once without CONNACK"},
        {"seconds", 'f', &seconds, 0.01, 3600, "give up what has not connected by then"},
        {"hold", 'f', &hold, 0, 3600, "seconds to hold them"},
        {0}};
    struct target target;
    struct device *devices; /* by descriptor */
    sigset_t waiting;
    uint64_t *took_ns, failures[REASONS] = {0}, disconnected = 0, deadline, now;
    long limit, begun = 0, in_flight = 0, connected = 0, failed = 0;
    int epoll, timer;

    parse_options(argc, argv, "connect", "open many MQTT connections and hold them",
                  "connect --port 18830 --connections 15000 --in-flight 64 --hold 2", rows);
    if (port + ports - 1 > 65535)
        die(EXIT_USAGE, "--port and --ports go beyond 65535");
    target = new_target(host, port, source, mqtt);
    need_descriptors(connections);
    limit = raise_descriptor_limit();
    waiting = catch_stop_signals();
    epoll = new_epoll();
    timer = new_timer(epoll);
    took_ns = allocate((size_t)connections, sizeof *took_ns);
    base_rss = resident_bytes();
    devices = allocate((size_t)limit, sizeof *devices);

    from = usage_now();
    deadline = from.wall_ns + (uint64_t)(seconds * 1e9);
    arm_timer(timer, deadline);
    while (connected + failed < connections && !stop_requested) {
        struct epoll_event events[EVENTS_A_WAIT];
        int count;
        while (begun < connections && in_flight < in_flight_max) {
            uint64_t begin = now_ns();
            int fd = new_socket(SOCK_NONBLOCK, target.bound ? &target.source : NULL);
            target.address.sin_port = htons((uint16_t)(port + begun % ports));
            begun++;
            if (fd < 0 ||
                (connect(fd, (struct sockaddr *)&target.address, sizeof target.address) &&
                 errno != EINPROGRESS)) {
                failures[reason_of(errno)]++;
                failed++;
                if (fd >= 0)
                    close(fd);
                continue;
            }
            devices[fd] = (struct device){.started_ns = begin, .index = (uint32_t)begun};
            watch(epoll, EPOLL_CTL_ADD, fd, EPOLLOUT);
            in_flight++;
        }
        if (!in_flight)
            break;
        count = epoll_pwait(epoll, events, EVENTS_A_WAIT, -1, &waiting);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd, trouble = -1;
            struct device *device = &devices[fd];
            if (fd == timer)
                continue;
            if (!device->sent) {
                uint8_t packet[128];
                char client_id[64];
                size_t length;
                socklen_t size = sizeof trouble;
                trouble = 0;
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &trouble, &size);
                if (!trouble) {
                    snprintf(client_id, sizeof client_id, "floor-%d-%u", (int)getpid(),
                             device->index);
                    length = encode_connect(packet, target.level, client_id);
                    if (send(fd, packet, length, MSG_NOSIGNAL) == (ssize_t)length) {
                        device->sent = true;
                        watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN);
                        continue;
                    }
                    trouble = errno;
                }
            } else {
                uint8_t answer[512];
                ssize_t length = recv(fd, answer, sizeof answer, 0);
                long expected;
                if (length < 0 && (errno == EAGAIN || errno == EINTR))
                    continue;
                if (length <= 0) {
                    trouble = length ? errno : 0;
                    if (device->connected) {
                        disconnected++;
                        close(fd);
                        continue;
                    }
                } else {
                    if (device->connected)
                        continue;
                    for (ssize_t k = 0; k < length && device->have + k < 5; k++)
                        device->ack[device->have + k] = answer[k];
                    device->have += (uint32_t)length;
                    expected = connack_bytes(device);
                    if (expected >= 0 && (!expected || device->have < expected))
                        continue;
                    if (expected > 0 && !connack_code(device)) {
                        took_ns[connected++] = now_ns() - device->started_ns;
                        device->connected = true;
                        in_flight--;
                        continue;
                    }
                    trouble = -1; /* rejected */
                }
            }
            failures[trouble < 0 ? REJECTED : reason_of(trouble)]++;
            failed++;
            in_flight--;
            close(fd);
        }
        now = now_ns();
        if (now >= deadline) {
            failures[TIMED_OUT] += (uint64_t)(connections - connected - failed);
            failed = connections - connected;
        }
    }
    to = usage_now();
    full_rss = resident_bytes();

    deadline = now_ns() + (uint64_t)(hold * 1e9);
    arm_timer(timer, deadline);
    while (!stop_requested && (now = now_ns()) < deadline) {
        struct epoll_event events[EVENTS_A_WAIT];
        int count = epoll_pwait(epoll, events, EVENTS_A_WAIT, -1, &waiting);
        for (int i = 0; i < count; i++) {
            uint8_t dropped[512];
            int fd = events[i].data.fd;
            if (fd == timer)
                continue;
            if (!devices[fd].connected) { /* given up above */
                close(fd);
                continue;
            }
            ssize_t length = recv(fd, dropped, sizeof dropped, 0);
            if (length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR)))
                continue;
            disconnected++;
            close(fd);
        }
    }

    json_open(NULL);
    json_word("program", "connect");
    json_bool("complete", connected == connections);
    json_count("connections", (uint64_t)connected);
    json_count("failed", (uint64_t)failed);
    json_open("failures");
    for (int i = 0; i < REASONS; i++)
        json_count(reason_names[i], failures[i]);
    json_close();
    json_count("disconnected", disconnected);
    json_count("in_flight", (uint64_t)in_flight_max);
    json_usage("window", from, to);
    json_number("connects_per_s", (double)connected / ((double)(to.wall_ns - from.wall_ns) / 1e9));
    json_number("cpu_us_per_connection", cpu_s_between(from, to) * 1e6 / (double)connected);
    json_distribution("connect_ns", took_ns, (uint64_t)connected);
    json_count("rss_base_bytes", (uint64_t)base_rss);
    json_count("rss_held_bytes", (uint64_t)full_rss);
    json_number("rss_bytes_per_connection", (double)(full_rss - base_rss) / (double)connected);
    json_finish(started);
    return 0;
}
