/* sink: a broker stand-in that takes everything and keeps nothing.
 *
 * Answers CONNECT, SUBSCRIBE, UNSUBSCRIBE and PINGREQ. Packets are followed exactly, however
 * they are split, until the first PUBLISH of a connection. From then on, unless --walk, a read
 * is dropped whole: only control packets at its very beginning are still answered. So a
 * PINGREQ behind a PUBLISH in one read goes unanswered, and a payload whose middle happens to
 * begin a read with the bytes of a PINGREQ is answered by mistake. --walk follows every
 * packet: exact, and counts PUBLISH; --acknowledge also answers QoS 1 with PUBACK. */
#include "server.h"

enum { DRAIN_NS = 1000000000 }; /* at most this long after SIGTERM */

int main(int argc, char **argv)
{
    struct usage started = usage_now();
    const char *host = "127.0.0.1";
    long port = 18830, ports = 1, connections = 1000000;
    double seconds = 300;
    int walk = 0, acknowledge = 0, once = 0;
    const struct option_row rows[] = {
        {"host", 's', &host, 0, 0, "address to listen on"},
        {"port", 'n', &port, 1, 65535, "first port"},
        {"ports", 'n', &ports, 1, LISTENERS_MAX, "how many consecutive ports"},
        {"connections", 'n', &connections, 1, 1e6, "most connections at once"},
        {"seconds", 'f', &seconds, 0.01, 86400, "end after this time at the latest"},
        {"walk", 'b', &walk, 0, 0, "follow every packet and count PUBLISH"},
        {"acknowledge", 'b', &acknowledge, 0, 0, "PUBACK for QoS 1 (implies --walk)"},
        {"once", 'b', &once, 0, 0, "end when the last connection has gone"},
        {0}};
    struct server server = {0};
    uint64_t deadline;
    bool stopping = false;
    parse_options(argc, argv, "sink",
                  "accept MQTT connections and discard what they send; SIGTERM prints the counts",
                  "sink --port 18830 --seconds 60 --walk", rows);
    server.walk = walk || acknowledge;
    server.acknowledge = acknowledge;
    server.connections_max = connections;
    server_listen(&server, host, port, ports);
    deadline = now_ns() + (uint64_t)(seconds * 1e9);
    while (!(once && server.accepted && !server.open)) {
        struct epoll_event events[EVENTS_A_WAIT];
        uint64_t now = now_ns();
        int count, timeout_ms;
        if (stop_requested && !stopping) {
            stopping = true;
            if (deadline > now + DRAIN_NS)
                deadline = now + DRAIN_NS;
        }
        if (now >= deadline)
            break;
        timeout_ms = stopping ? 0 : (int)((deadline - now) / 1000000u) + 1;
        count = epoll_pwait(server.epoll, events, EVENTS_A_WAIT, timeout_ms, &server.waiting);
        if (stopping && !count)
            break; /* everything that was sent before the signal has been read */
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (server.listening[fd])
                server_accept(&server, fd);
            else if (!server_read(&server, fd))
                server_close(&server, fd);
        }
    }
    json_open(NULL);
    json_word("program", "sink");
    server_report(&server);
    json_number("messages", server.walk ? (double)server.publishes : NAN);
    json_count("pubacks", server.pubacks);
    json_finish(started);
    return 0;
}
