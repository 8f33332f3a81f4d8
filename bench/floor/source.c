/* source: a broker stand-in that sends PUBLISH, QoS 0, to whoever subscribes.
 *
 * It waits for the asked number of subscribed connections, then sends on an open-loop
 * schedule, round robin, `--burst` messages a write. Each message carries the payload header
 * below, so a receiver can check and time it. A slow reader makes later messages late, never
 * lost; one that takes nothing for five seconds is closed. */
#include "payload.h"
#include "server.h"

enum { BURST_MAX = 4096, PATIENCE_MS = 5000 };

struct stream {
    uint8_t *packet;
    uint64_t sequence;
    uint32_t number;
    uint16_t packet_bytes;
};

/* The subscribed descriptors, in the order of the round robin. */
struct ring {
    int *fds;
    size_t count, next;
};

static void ring_remove(struct ring *ring, int fd)
{
    for (size_t i = 0; i < ring->count; i++) {
        if (ring->fds[i] != fd)
            continue;
        ring->count--;
        memmove(ring->fds + i, ring->fds + i + 1, (ring->count - i) * sizeof *ring->fds);
        if (ring->next > i)
            ring->next--;
        return;
    }
}

static size_t build_burst(struct stream *stream, uint8_t *out, uint64_t count, uint64_t intended,
                          uint64_t sent)
{
    uint8_t *end = out;
    for (uint64_t i = 0; i < count; i++) {
        memcpy(end, stream->packet, stream->packet_bytes);
        end += stream->packet_bytes;
        stamp(end - PAYLOAD_BYTES, stream->sequence++, intended, sent);
    }
    return (size_t)(end - out);
}

int main(int argc, char **argv)
{
    struct usage started = usage_now();
    const char *host = "127.0.0.1", *topic = "floor/source";
    long port = 18840, ports = 1, subscribers = 1, burst = 1, tick_us = -1, run_tag = 1, base = 0;
    long settle_ms = 200;
    double rate = 1000, seconds = 5, patience = 60;
    const struct option_row rows[] = {
        {"host", 's', &host, 0, 0, "address to listen on"},
        {"port", 'n', &port, 1, 65535, "first port"},
        {"ports", 'n', &ports, 1, LISTENERS_MAX, "how many consecutive ports"},
        {"subscribers", 'n', &subscribers, 1, 1e6, "subscribed connections to wait for"},
        {"wait", 'f', &patience, 0.1, 3600, "seconds to wait for them"},
        {"settle-ms", 'n', &settle_ms, 0, 60000, "pause between the last of them and sending"},
        {"rate", 'f', &rate, 0.1, 1e7, "messages a second in total"},
        {"seconds", 'f', &seconds, 0.01, 3600, "how long to send"},
        {"burst", 'n', &burst, 1, BURST_MAX, "messages a write"},
        {"tick-us", 'n', &tick_us, -1, 1e6,
         "wake-up interval; 0: one for each write; -1: 0 up to 20,000 writes/s, else 1000"},
        {"topic", 's', &topic, 0, 0, "topic; {i} becomes the number of the connection"},
        {"run-tag", 'n', &run_tag, 0, 4294967295.0, "run tag in each payload"},
        {"stream-base", 'n', &base, 0, 4294967295.0, "stream of the first connection"},
        {0}};
    struct server server = {.walk = true, .connections_max = 1000000};
    struct ring ring = {0};
    struct stream *streams;
    struct pacer pacer;
    struct usage from = {0}, to = {0};
    uint8_t *scratch;
    uint64_t sent = 0, writes = 0, blocked = 0, lost_peers = 0, lateness_max = 0, deadline;
    double lateness_sum = 0;
    uint32_t numbered = 0;
    bool sending = false, finished = false;
    int timer;

    parse_options(argc, argv, "source",
                  "answer CONNECT and SUBSCRIBE, then send PUBLISH to every subscriber",
                  "source --port 18840 --subscribers 100 --rate 10000 --seconds 5 --burst 10", rows);
    check_topic("topic", topic);
    make_crc_tables();
    ask_exact_timers();
    pacer = new_pacer(rate, seconds, burst, tick_us);
    scratch = allocate((size_t)burst, PUBLISH_BYTES_MAX);
    server_listen(&server, host, port, ports);
    streams = allocate((size_t)server.descriptors, sizeof *streams);
    ring.fds = allocate((size_t)server.descriptors, sizeof *ring.fds);
    timer = new_timer(server.epoll);
    deadline = now_ns() + (uint64_t)(patience * 1e9);
    arm_timer(timer, deadline);

    while (!stop_requested) {
        struct epoll_event events[EVENTS_A_WAIT];
        int count = epoll_pwait(server.epoll, events, EVENTS_A_WAIT, -1, &server.waiting);
        uint64_t now, due;
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == timer)
                continue;
            if (server.listening[fd]) {
                server_accept(&server, fd);
                continue;
            }
            if (!server.peers[fd].open)
                continue;
            if (!server_read(&server, fd)) {
                ring_remove(&ring, fd);
                free(streams[fd].packet);
                streams[fd] = (struct stream){0};
                server_close(&server, fd);
            } else if (server.peers[fd].subscribed && !streams[fd].packet && !finished) {
                char name[TOPIC_BYTES_MAX];
                uint32_t tag = (uint32_t)run_tag, number = (uint32_t)base + numbered;
                struct stream *stream = &streams[fd];
                expand_topic(name, topic, numbered++);
                stream->packet = allocate(1, PUBLISH_BYTES_MAX);
                stream->packet_bytes =
                    (uint16_t)encode_publish(stream->packet, server.peers[fd].level, name);
                stream->number = number;
                memcpy(stream->packet + stream->packet_bytes - PAYLOAD_BYTES, &tag, 4);
                memcpy(stream->packet + stream->packet_bytes - PAYLOAD_BYTES + STREAM_AT, &number, 4);
                ring.fds[ring.count++] = fd;
            }
        }
        now = now_ns();
        if (finished) {
            if (!server.open || now >= deadline)
                break;
            continue;
        }
        if (!sending) {
            if (ring.count >= (size_t)subscribers) {
                sending = true;
                from = usage_now();
                pacer.start_ns = now + (uint64_t)settle_ms * 1000000u;
                deadline = pacer.start_ns + (uint64_t)(seconds * 2e9) + 5000000000u;
                arm_timer(timer, pacer.start_ns);
            } else if (now >= deadline) {
                die(EXIT_CANNOT_RUN, "only %zu of %ld connections subscribed within %g seconds",
                    ring.count, subscribers, patience);
            }
            continue;
        }
        if (!writes)
            from = usage_now();
        due = owed(&pacer, now);
        while (sent < due && ring.count) {
            uint64_t batch = pacer.total - sent < pacer.batch ? pacer.total - sent : pacer.batch;
            uint64_t intended = due_ns(&pacer, sent), stamp = now_ns(), late = stamp - intended;
            int fd;
            size_t length;
            if (ring.next >= ring.count)
                ring.next = 0;
            fd = ring.fds[ring.next];
            length = build_burst(&streams[fd], scratch, batch, intended, stamp);
            if (!write_all(fd, scratch, length, PATIENCE_MS, &blocked)) {
                lost_peers++;
                ring_remove(&ring, fd);
                free(streams[fd].packet);
                streams[fd] = (struct stream){0};
                server_close(&server, fd);
                continue;
            }
            ring.next++;
            writes++;
            sent += batch;
            lateness_sum += (double)late;
            if (late > lateness_max)
                lateness_max = late;
        }
        if (sent < pacer.total && ring.count && now < deadline) {
            arm_timer(timer, wake_ns(&pacer, sent, now));
            continue;
        }
        /* FIN behind the last message, and then wait for the readers: closing at once could
         * reset a connection with something unread and take messages with it. */
        to = usage_now();
        finished = true;
        for (size_t i = 0; i < ring.count; i++)
            shutdown(ring.fds[i], SHUT_WR);
        deadline = now_ns() + 5000000000u;
        arm_timer(timer, deadline);
        if (!server.open)
            break;
    }
    if (sending && !finished)
        to = usage_now();
    json_open(NULL);
    json_word("program", "source");
    json_bool("complete", sent == pacer.total);
    json_count("subscribers", numbered);
    json_count("burst", pacer.batch);
    json_count("tick_us", pacer.tick_ns / 1000u);
    json_count("messages", sent);
    json_count("writes", writes);
    json_count("blocked", blocked);
    json_count("lost_peers", lost_peers);
    json_usage("window", from, to);
    json_number("rate", (double)sent / ((double)(to.wall_ns - from.wall_ns) / 1e9));
    json_number("cpu_us_per_message", cpu_s_between(from, to) * 1e6 / (double)sent);
    json_number("lateness_mean_ns", lateness_sum / (double)writes);
    json_count("lateness_max_ns", lateness_max);
    server_report(&server);
    json_finish(started);
    return 0;
}
