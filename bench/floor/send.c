/* send: what sending costs when nothing but the socket calls is done.
 *
 * Single: for each message one epoll_wait, one send and one timerfd_settime; above 20,000
 * messages a second one wake-up a millisecond sends what is due, still a send for each message.
 * Batch: each tick sends what is due, --batch messages a send. Packets are made beforehand; with
 * --stamp each gets its sequence, moments and checksum before it is sent. */
#include "payload.h"

enum { EVENTS_A_WAIT = 64, BATCH_MAX = 4096, PATIENCE_MS = 5000 };

/* A publisher of QoS 0 is told nothing: what it reads here is dropped, and an end is an error. */
static void drain(int fd)
{
    uint8_t dropped[512];
    ssize_t count = recv(fd, dropped, sizeof dropped, 0);
    if (!count || (count < 0 && errno != EAGAIN && errno != EINTR))
        die(EXIT_CANNOT_RUN, "the broker closed a connection");
}

int main(int argc, char **argv)
{
    struct usage started = usage_now(), from, to;
    const char *host = "127.0.0.1", *source = NULL, *mode = "single", *mqtt = "3.1.1";
    const char *topic = "floor/{i}";
    long port = 18830, connections = 100, batch = 20, tick_us = -1;
    int stamped = 0;
    double rate = 1000, seconds = 5;
    const struct option_row rows[] = {
        {"host", 's', &host, 0, 0, "broker"},
        {"port", 'n', &port, 1, 65535, "its port"},
        {"source-address", 's', &source, 0, 0, "local address to connect from"},
        {"mqtt", 's', &mqtt, 0, 0, "3.1.1 or 5"},
        {"connections", 'n', &connections, 1, 1e6, "publishers"},
        {"rate", 'f', &rate, 0.1, 1e7, "messages a second in total"},
        {"seconds", 'f', &seconds, 0.01, 3600, "how long to send"},
        {"mode", 's', &mode, 0, 0, "single or batch"},
        {"batch", 'n', &batch, 1, BATCH_MAX, "messages a send in mode batch"},
        {"tick-us", 'n', &tick_us, -1, 1e6,
         "wake-up interval; 0: one for each send; -1: as --mode asks"},
        {"topic", 's', &topic, 0, 0, "topic; {i} becomes the number of the connection"},
        {"stamp", 'b', &stamped, 0, 0, "write loadgen's header into each message"},
        {0}};
    struct target target;
    struct pacer pacer;
    sigset_t waiting;
    uint8_t *packets; /* per connection: one whole batch */
    uint16_t *packet_bytes;
    int *fds, epoll, timer;
    size_t stride;
    uint64_t sent = 0, sends = 0, blocked = 0, wakeups = 0, lateness_max = 0, deadline, now;
    double lateness_sum = 0;
    long next = 0;
    bool batched;

    parse_options(argc, argv, "send", "publish 32-byte QoS 0 messages at a rate",
                  "send --port 18830 --connections 1000 --rate 10000 --seconds 5", rows);
    check_topic("topic", topic);
    batched = !strcmp(mode, "batch");
    if (!batched && strcmp(mode, "single"))
        die(EXIT_USAGE, "--mode must be single or batch, not '%.40s'", mode);
    if (!batched)
        batch = 1;
    else if (tick_us < 0)
        tick_us = TICK_DEFAULT_US;
    stride = (size_t)batch * (strlen(topic) + 64);
    if ((double)stride * (double)connections > 2e9)
        die(EXIT_USAGE, "--batch and --connections together need more than 2 GB of packets");
    target = new_target(host, port, source, mqtt);
    need_descriptors(connections);
    make_crc_tables();
    waiting = catch_stop_signals();
    ask_exact_timers();
    pacer = new_pacer(rate, seconds, batch, tick_us);
    packets = allocate((size_t)connections, stride);
    packet_bytes = allocate((size_t)connections, sizeof *packet_bytes);
    fds = allocate((size_t)connections, sizeof *fds);
    epoll = new_epoll();
    timer = new_timer(epoll);
    for (long i = 0; i < connections; i++) {
        uint8_t packet[PUBLISH_BYTES_MAX];
        char name[TOPIC_BYTES_MAX];
        expand_topic(name, topic, (unsigned long)i);
        packet_bytes[i] = (uint16_t)encode_publish(packet, target.level, name);
        for (long k = 0; k < batch; k++)
            memcpy(packets + (size_t)i * stride + (size_t)k * packet_bytes[i], packet,
                   packet_bytes[i]);
        fds[i] = dial(&target, "floor-send", i);
        set_nonblocking(fds[i]);
        watch(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN);
    }

    from = usage_now();
    pacer.start_ns = from.wall_ns + 1000000u;
    deadline = pacer.start_ns + (uint64_t)(seconds * 2e9) + 5000000000u;
    arm_timer(timer, pacer.start_ns);
    do {
        struct epoll_event events[EVENTS_A_WAIT];
        int count = epoll_pwait(epoll, events, EVENTS_A_WAIT, -1, &waiting);
        uint64_t due;
        for (int i = 0; i < count; i++)
            if (events[i].data.fd != timer)
                drain(events[i].data.fd);
        now = now_ns();
        due = owed(&pacer, now);
        wakeups++;
        while (sent < due) {
            uint64_t size = pacer.total - sent < pacer.batch ? pacer.total - sent : pacer.batch;
            uint64_t late = now - due_ns(&pacer, sent);
            uint8_t *packet = packets + (size_t)next * stride;
            if (stamped) {
                uint64_t at = now_ns();
                for (uint64_t k = 0; k < size; k++)
                    stamp(packet + (k + 1) * packet_bytes[next] - PAYLOAD_BYTES, sent + k,
                          due_ns(&pacer, sent + k), at);
            }
            if (!write_all(fds[next], packet, size * packet_bytes[next], PATIENCE_MS, &blocked))
                die(EXIT_CANNOT_RUN, "a connection was closed or took nothing for %d s",
                    PATIENCE_MS / 1000);
            next = next + 1 == connections ? 0 : next + 1;
            sends++;
            sent += size;
            lateness_sum += (double)late;
            if (late > lateness_max)
                lateness_max = late;
        }
        if (sent < pacer.total)
            arm_timer(timer, wake_ns(&pacer, sent, now));
    } while (sent < pacer.total && now < deadline && !stop_requested);
    to = usage_now();

    json_open(NULL);
    json_word("program", "send");
    json_word("mode", batched ? "batch" : "single");
    json_bool("complete", sent == pacer.total);
    json_bool("stamped", stamped);
    json_count("connections", (uint64_t)connections);
    json_count("batch", pacer.batch);
    json_count("tick_us", pacer.tick_ns / 1000u);
    json_count("messages", sent);
    json_count("sends", sends);
    json_count("wakeups", wakeups);
    json_count("blocked", blocked);
    json_usage("window", from, to);
    json_number("rate", (double)sent / ((double)(to.wall_ns - from.wall_ns) / 1e9));
    json_number("cpu_us_per_message", cpu_s_between(from, to) * 1e6 / (double)sent);
    json_number("cpu_us_per_send", cpu_s_between(from, to) * 1e6 / (double)sends);
    json_number("lateness_mean_ns", lateness_sum / (double)sends);
    json_count("lateness_max_ns", lateness_max);
    json_finish(started);
    return 0;
}
