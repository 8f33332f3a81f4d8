/* recv: what receiving costs when nothing but epoll_wait and recv is done.
 *
 * Every connection subscribes; then reads of all connections land in one buffer and are
 * counted. The size of a packet is learned from the first one: messages = bytes / size, which
 * is right where all are alike; --walk follows the fixed headers instead and is right always.
 * --check compares the checksum of each message that is whole within a read.
 * The window runs from the first data to the first end of a connection, to the last data before
 * --idle seconds of silence (known to a tenth of a second), or for --seconds. */
#include "payload.h"

enum { EVENTS_A_WAIT = 512, LOOK_NS = 100000000 };

/* Where one connection stands between two packets. */
struct cursor {
    uint32_t skip;      /* bytes of the current packet still to come */
    uint8_t head[5];    /* a fixed header that is not all there */
    uint8_t head_bytes;
};

/* Returns how many PUBLISH packets begin in `data`, counted when their fixed header is whole. */
static uint64_t walk_packets(struct cursor *cursor, const uint8_t *data, size_t length)
{
    uint64_t found = 0;
    while (length) {
        uint32_t body;
        int digits;
        if (cursor->skip) {
            size_t step = cursor->skip < length ? cursor->skip : length;
            cursor->skip -= (uint32_t)step;
            data += step;
            length -= step;
            continue;
        }
        if (!cursor->head_bytes && length >= 5) {
            digits = get_length(data + 1, 4, &body);
            if (digits < 0)
                die(EXIT_CANNOT_RUN, "the broker sent a malformed packet");
            found += data[0] >> 4 == 3;
            data += 1 + digits;
            length -= 1 + (size_t)digits;
            cursor->skip = body;
            continue;
        }
        cursor->head[cursor->head_bytes++] = *data++;
        length--;
        digits = get_length(cursor->head + 1, cursor->head_bytes - 1u, &body);
        if (digits < 0)
            die(EXIT_CANNOT_RUN, "the broker sent a malformed packet");
        if (digits) {
            found += cursor->head[0] >> 4 == 3;
            cursor->skip = body;
            cursor->head_bytes = 0;
        }
    }
    return found;
}

struct counts {
    uint64_t reads, bytes, messages;
};

/* Messages of `counts`, by size unless walked; NAN where the bytes are no multiple of it. */
static double messages_of(struct counts counts, uint64_t packet_bytes, bool walk)
{
    if (walk)
        return (double)counts.messages;
    if (!packet_bytes || counts.bytes % packet_bytes)
        return NAN;
    return (double)(counts.bytes / packet_bytes);
}

int main(int argc, char **argv)
{
    struct usage started = usage_now(), from, to = {0};
    const char *host = "127.0.0.1", *source = NULL, *mqtt = "3.1.1", *topic = "floor/#";
    long port = 18840, connections = 1, known_bytes = 0;
    double seconds = 5, patience = 30, idle = 2;
    int walk = 0, check = 0;
    uint64_t checked = 0, corrupt = 0;
    uint32_t *begun; /* by descriptor: bytes of a packet whose end has not come */
    const struct option_row rows[] = {
        {"host", 's', &host, 0, 0, "broker"},
        {"port", 'n', &port, 1, 65535, "its port"},
        {"source-address", 's', &source, 0, 0, "local address to connect from"},
        {"mqtt", 's', &mqtt, 0, 0, "3.1.1 or 5"},
        {"connections", 'n', &connections, 1, 1e6, "subscribers"},
        {"topic", 's', &topic, 0, 0, "topic filter; {i} becomes the number of the connection"},
        {"seconds", 'f', &seconds, 0.01, 3600, "longest time to receive, from the first data"},
        {"wait", 'f', &patience, 0.1, 3600, "seconds to wait for the first data"},
        {"idle", 'f', &idle, 0.2, 3600, "end after so many seconds without data"},
        {"packet-bytes", 'n', &known_bytes, 0, 1e6, "bytes of a packet; 0: learn it"},
        {"walk", 'b', &walk, 0, 0, "follow the fixed headers and count PUBLISH"},
        {"check", 'b', &check, 0, 0, "compare loadgen's checksum, where packets are alike"},
        {0}};
    struct target target;
    struct cursor *cursors; /* by descriptor */
    struct counts counts = {0}, window = {0};
    sigset_t waiting;
    uint8_t *buffer;
    uint64_t packet_bytes, seen_bytes = 0, seen_ns = 0;
    int *fds, epoll, timer;
    long open;
    bool measuring = false, measured = false, timed_out = false;

    parse_options(argc, argv, "recv", "subscribe and count what arrives",
                  "recv --port 18840 --connections 100 --seconds 5", rows);
    check_topic("topic", topic);
    target = new_target(host, port, source, mqtt);
    need_descriptors(connections);
    waiting = catch_stop_signals();
    packet_bytes = (uint64_t)known_bytes;
    fds = allocate((size_t)connections, sizeof *fds);
    cursors = allocate((size_t)raise_descriptor_limit(), sizeof *cursors);
    begun = allocate((size_t)raise_descriptor_limit(), sizeof *begun);
    make_crc_tables();
    buffer = allocate(1, READ_BYTES);
    epoll = new_epoll();
    timer = new_timer(epoll);
    for (long i = 0; i < connections; i++) {
        fds[i] = dial(&target, "floor-recv", i);
        watch(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN);
    }
    for (long i = 0; i < connections; i++) {
        char filter[TOPIC_BYTES_MAX];
        expand_topic(filter, topic, (unsigned long)i);
        subscribe(fds[i], target.level, filter);
        set_nonblocking(fds[i]);
    }

    open = connections;
    from = usage_now();
    arm_timer(timer, from.wall_ns + (uint64_t)(patience * 1e9));
    while (open && !timed_out && !stop_requested) {
        struct epoll_event events[EVENTS_A_WAIT];
        int count = epoll_pwait(epoll, events, EVENTS_A_WAIT, -1, &waiting);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            ssize_t length;
            if (fd == timer) {
                uint64_t now = now_ns();
                if (counts.bytes != seen_bytes) {
                    seen_bytes = counts.bytes;
                    seen_ns = now;
                }
                timed_out = !measuring || now - from.wall_ns >= (uint64_t)(seconds * 1e9) ||
                            now - seen_ns >= (uint64_t)(idle * 1e9);
                arm_timer(timer, now + LOOK_NS);
                continue;
            }
            if (!measuring) {
                measuring = true;
                from = usage_now();
                seen_ns = from.wall_ns;
                arm_timer(timer, from.wall_ns + LOOK_NS);
            }
            length = recv(fd, buffer, READ_BYTES, 0);
            if (length > 0) {
                counts.reads++;
                counts.bytes += (uint64_t)length;
                if (walk) {
                    counts.messages += walk_packets(&cursors[fd], buffer, (size_t)length);
                } else if (!packet_bytes) {
                    uint32_t body;
                    int digits = get_length(buffer + 1, (size_t)length - 1, &body);
                    if (digits > 0)
                        packet_bytes = 1 + (uint64_t)digits + body;
                }
                if (check && packet_bytes) {
                    size_t at = (packet_bytes - begun[fd]) % packet_bytes;
                    for (; at + packet_bytes <= (size_t)length; at += packet_bytes) {
                        checked++;
                        corrupt += !is_intact(buffer + at + packet_bytes - PAYLOAD_BYTES);
                    }
                    begun[fd] = (uint32_t)((begun[fd] + (uint64_t)length) % packet_bytes);
                }
            } else if (!length || (errno != EAGAIN && errno != EINTR)) {
                if (!measured) {
                    measured = true;
                    to = usage_now();
                    window = counts;
                }
                close(fd);
                open--;
            }
        }
    }
    if (!measured) {
        to = usage_now(); /* silence costs no processor time */
        if (counts.bytes == seen_bytes)
            to.wall_ns = seen_ns;
        window = counts;
    }
    if (!counts.bytes)
        die(EXIT_CANNOT_RUN, "nothing arrived within %g seconds", patience);

    json_open(NULL);
    json_word("program", "recv");
    json_word("counted", walk ? "walk" : "size");
    json_count("connections", (uint64_t)connections);
    json_count("reads", window.reads);
    json_count("bytes", window.bytes);
    json_number("messages", messages_of(window, packet_bytes, walk));
    json_number("messages_total", messages_of(counts, packet_bytes, walk));
    json_count("packet_bytes", packet_bytes);
    json_count("checked", checked);
    json_count("corrupt", corrupt);
    json_usage("window", from, to);
    json_number("rate", messages_of(window, packet_bytes, walk) /
                            ((double)(to.wall_ns - from.wall_ns) / 1e9));
    json_number("messages_per_read",
                messages_of(window, packet_bytes, walk) / (double)window.reads);
    json_number("cpu_us_per_read", cpu_s_between(from, to) * 1e6 / (double)window.reads);
    json_number("cpu_us_per_message",
                cpu_s_between(from, to) * 1e6 / messages_of(window, packet_bytes, walk));
    json_finish(started);
    return 0;
}
