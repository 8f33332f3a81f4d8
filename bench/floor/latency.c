/* latency: one publisher and one subscriber in one loop, through a broker.
 *
 * A timerfd paces one send for each message. The sent stamp is taken immediately before
 * send(), the received stamp immediately after recv(); their difference is reported for every
 * message sent after the warm-up. */
#include "common.h"

enum { SEQUENCE_AT = 8, MESSAGES_MAX = 50000000, TAIL_BYTES = 1024 };

int main(int argc, char **argv)
{
    struct usage started = usage_now(), from = {0}, to;
    const char *host = "127.0.0.1", *source = NULL, *mqtt = "3.1.1";
    long port = 1883;
    double rate = 10000, seconds = 5, warmup = 1, drain_s = 1;
    const struct option_row rows[] = {
        {"host", 's', &host, 0, 0, "broker"},
        {"port", 'n', &port, 1, 65535, "its port"},
        {"source-address", 's', &source, 0, 0, "local address to connect from"},
        {"mqtt", 's', &mqtt, 0, 0, "3.1.1 or 5"},
        {"rate", 'f', &rate, 0.1, 1e6, "messages a second"},
        {"warmup", 'f', &warmup, 0, 600, "seconds sent before and not counted"},
        {"seconds", 'f', &seconds, 0.01, 3600, "seconds that are counted"},
        {"drain", 'f', &drain_s, 0.01, 60, "seconds to wait for the last messages"},
        {0}};
    struct target target;
    struct pacer pacer;
    sigset_t waiting;
    char topic[TOPIC_BYTES_MAX];
    uint8_t packet[PUBLISH_BYTES_MAX], *buffer;
    size_t packet_bytes, tail = 0;
    uint64_t *sent_ns, *latency_ns, *lateness_ns; /* by sequence; a latency 0 has not arrived */
    uint64_t first, sent = 0, received = 0, counted = 0, reads = 0, blocked = 0;
    uint64_t repeated = 0, out_of_order = 0, foreign = 0, last = 0, deadline, now;
    int publisher, subscriber, epoll, timer;
    bool draining = false;

    parse_options(argc, argv, "latency", "time messages from send to receive through a broker",
                  "latency --port 1883 --rate 10000 --seconds 5", rows);
    if (rate * (warmup + seconds) > MESSAGES_MAX)
        die(EXIT_USAGE, "--rate times the seconds must stay below %d messages", MESSAGES_MAX);
    target = new_target(host, port, source, mqtt);
    waiting = catch_stop_signals();
    ask_exact_timers();
    pacer = new_pacer(rate, warmup + seconds, 1, 0);
    first = (uint64_t)(rate * warmup + 0.5);
    sent_ns = allocate(pacer.total, sizeof *sent_ns);
    latency_ns = allocate(pacer.total, sizeof *latency_ns);
    lateness_ns = allocate(pacer.total, sizeof *lateness_ns);
    buffer = allocate(1, TAIL_BYTES + READ_BYTES);
    snprintf(topic, sizeof topic, "floor/latency/%d", (int)getpid());
    packet_bytes = encode_publish(packet, target.level, topic);
    subscriber = dial(&target, "floor-latency-sub", 0);
    subscribe(subscriber, target.level, topic);
    publisher = dial(&target, "floor-latency-pub", 0);
    set_nonblocking(subscriber);
    set_nonblocking(publisher);
    epoll = new_epoll();
    timer = new_timer(epoll);
    watch(epoll, EPOLL_CTL_ADD, subscriber, EPOLLIN);
    watch(epoll, EPOLL_CTL_ADD, publisher, EPOLLIN);

    pacer.start_ns = now_ns() + 1000000u;
    deadline = pacer.start_ns + (uint64_t)((warmup + seconds) * 2e9) + 5000000000u;
    arm_timer(timer, pacer.start_ns);
    for (;;) {
        struct epoll_event events[8];
        int count = epoll_pwait(epoll, events, 8, -1, &waiting);
        if (stop_requested)
            break;
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            ssize_t length;
            uint64_t arrived;
            uint8_t *at, *end;
            if (fd == timer)
                continue;
            length = recv(fd, buffer + tail, fd == subscriber ? READ_BYTES : TAIL_BYTES, 0);
            arrived = now_ns();
            if (length < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            if (length <= 0)
                die(EXIT_CANNOT_RUN, "the broker closed a connection");
            if (fd == publisher)
                continue;
            reads++;
            at = buffer;
            end = buffer + tail + length;
            while (at < end) {
                uint32_t body;
                uint64_t sequence;
                int digits = get_length(at + 1, (size_t)(end - at) - 1, &body);
                if (digits < 0 || (digits > 0 && body > TAIL_BYTES - 8))
                    die(EXIT_CANNOT_RUN, "the broker sent a packet that was not published here");
                if (!digits || at + 1 + digits + body > end)
                    break;
                at += 1 + digits + body;
                if (body < PAYLOAD_BYTES) {
                    foreign++;
                    continue;
                }
                memcpy(&sequence, at - PAYLOAD_BYTES + SEQUENCE_AT, 8);
                if (sequence >= sent) {
                    foreign++;
                    continue;
                }
                received++;
                out_of_order += sequence < last;
                last = sequence;
                if (latency_ns[sequence])
                    repeated++;
                else
                    latency_ns[sequence] = arrived - sent_ns[sequence];
            }
            tail = (size_t)(end - at);
            memmove(buffer, at, tail);
        }
        now = now_ns();
        if (draining) {
            if (received - repeated >= sent || now >= deadline)
                break;
            continue;
        }
        for (uint64_t due = owed(&pacer, now); sent < due; sent++) {
            memcpy(packet + packet_bytes - PAYLOAD_BYTES + SEQUENCE_AT, &sent, 8);
            if (sent == first)
                from = usage_now();
            sent_ns[sent] = now_ns();
            lateness_ns[sent] = sent_ns[sent] - due_ns(&pacer, sent);
            if (!write_all(publisher, packet, packet_bytes, 5000, &blocked))
                die(EXIT_CANNOT_RUN, "the publisher's connection took nothing for 5 s");
        }
        if (sent < pacer.total && now < deadline) {
            arm_timer(timer, wake_ns(&pacer, sent, now));
        } else {
            draining = true;
            deadline = now + (uint64_t)(drain_s * 1e9);
            arm_timer(timer, deadline);
        }
    }
    to = usage_now();
    if (sent <= first)
        die(EXIT_CANNOT_RUN, "stopped before the warm-up was over");
    for (uint64_t i = first; i < sent; i++)
        if (latency_ns[i])
            latency_ns[counted++] = latency_ns[i]; /* counted never overtakes i */

    json_open(NULL);
    json_word("program", "latency");
    json_bool("complete", sent == pacer.total);
    json_count("messages", sent - first);
    json_count("received", counted);
    json_count("lost", sent - (received - repeated));
    json_count("repeated", repeated);
    json_count("out_of_order", out_of_order);
    json_count("foreign", foreign);
    json_count("reads_total", reads);
    json_count("blocked", blocked);
    json_distribution("latency_ns", latency_ns, counted);
    json_distribution("lateness_ns", lateness_ns + first, sent - first);
    json_usage("window", from, to);
    json_number("cpu_us_per_message", cpu_s_between(from, to) * 1e6 / (double)(sent - first));
    json_finish(started);
    return 0;
}
