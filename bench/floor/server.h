/* The broker's side of a conversation, as little of it as sink.c and source.c need:
 * listening, CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, and PUBACK on request.
 *
 * A connection costs 16 bytes here. Bytes that are not yet a whole head are kept in a small
 * allocation of their own until the rest comes, so packets may be split anywhere. */
#ifndef FLOOR_SERVER_H
#define FLOOR_SERVER_H

#include "common.h"

enum {
    CONTROL_BYTES_MAX = 65535, /* a longer CONNECT, SUBSCRIBE or topic closes the connection */
    REPLY_BYTES = 64 * 1024,
    EVENTS_A_WAIT = 512,
    ACCEPTS_A_WAIT = 256,
    LISTENERS_MAX = 1024,
};

struct peer {
    uint8_t *tail; /* a head that is not all there */
    uint32_t skip; /* bytes of a PUBLISH still to come and to be dropped */
    uint16_t tail_bytes;
    uint8_t level; /* 0 before CONNECT */
    bool open : 1, dropping : 1, subscribed : 1;
};

struct server {
    int epoll, reserve; /* reserve: a descriptor to give up when there are no others */
    sigset_t waiting;
    long descriptors;
    struct peer *peers; /* by descriptor */
    uint8_t *listening; /* by descriptor */
    uint8_t *buffer, *reply;
    size_t reply_bytes;
    bool walk;        /* follow every packet, so that PUBLISH can be counted */
    bool acknowledge; /* PUBACK for QoS 1 */
    long connections_max;
    uint64_t accepted, refused, open, peak, closed, malformed, stalled;
    uint64_t connects, subscribes, pings, publishes, pubacks, reads, bytes;
};

/* Listens on `ports` consecutive ports and says so on stderr once they are all open. */
static inline void server_listen(struct server *server, const char *host, long port, long ports)
{
    struct in_addr address = resolve(host);
    server->waiting = catch_stop_signals();
    server->descriptors = raise_descriptor_limit();
    server->peers = allocate((size_t)server->descriptors, sizeof *server->peers);
    server->listening = allocate((size_t)server->descriptors, 1);
    server->buffer = allocate(1, CONTROL_BYTES_MAX + READ_BYTES);
    server->reply = allocate(1, REPLY_BYTES);
    server->epoll = new_epoll();
    server->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (port + ports - 1 > 65535)
        die(EXIT_USAGE, "--port and --ports go beyond 65535");
    for (long i = 0; i < ports; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_addr = address,
                                 .sin_port = htons((uint16_t)(port + i))};
        int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            die(EXIT_CANNOT_RUN, "socket: %s", strerror(errno));
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        /* Inherited by what is accepted. */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 65535))
            die(EXIT_CANNOT_RUN, "cannot listen on port %ld: %s", port + i, strerror(errno));
        server->listening[fd] = 1;
        watch(server->epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
    }
    fprintf(stderr, "%s: listening on %ld port(s) from %ld\n", program_name, ports, port);
    fflush(stderr);
}

static inline void server_accept(struct server *server, int listener)
{
    for (int i = 0; i < ACCEPTS_A_WAIT; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && server->reserve >= 0) {
            /* Left alone the listener stays readable and the loop would spin. */
            close(server->reserve);
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) {
                close(fd);
                server->refused++;
            }
            server->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
            return;
        }
        if (fd < 0)
            return;
        if (fd >= server->descriptors || server->open >= (uint64_t)server->connections_max) {
            close(fd);
            server->refused++;
            continue;
        }
        server->peers[fd] = (struct peer){.open = true};
        server->accepted++;
        server->open++;
        if (server->open > server->peak)
            server->peak = server->open;
        watch(server->epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
    }
}

static inline void server_close(struct server *server, int fd)
{
    free(server->peers[fd].tail);
    server->peers[fd] = (struct peer){0};
    close(fd);
    server->open--;
    server->closed++;
}

/* Sends what was answered so far. False when the peer does not take it. */
static inline bool server_flush(struct server *server, int fd)
{
    size_t length = server->reply_bytes;
    server->reply_bytes = 0;
    if (!length || send(fd, server->reply, length, MSG_NOSIGNAL) == (ssize_t)length)
        return true;
    server->stalled++;
    return false;
}

static inline bool server_answer(struct server *server, int fd, const uint8_t *data, size_t length)
{
    if (server->reply_bytes + length > REPLY_BYTES && !server_flush(server, fd))
        return false;
    memcpy(server->reply + server->reply_bytes, data, length);
    server->reply_bytes += length;
    return true;
}

static inline unsigned get_u16(const uint8_t *data)
{
    return (unsigned)data[0] << 8 | data[1];
}

/* MQTT 3.1.1 and 5, section 3.1: only the protocol's name and level are looked at. */
static inline bool answer_connect(struct server *server, int fd, const uint8_t *body, uint32_t length)
{
    static const uint8_t connack[] = {0x20, 2, 0, 0}, connack_5[] = {0x20, 3, 0, 0, 0};
    unsigned name = length >= 2 ? get_u16(body) : 0;
    uint8_t level = length > 2 + name ? body[2 + name] : 0;
    if (server->peers[fd].level || level < 3 || level > 5)
        return false;
    server->peers[fd].level = level;
    server->connects++;
    return level == 5 ? server_answer(server, fd, connack_5, sizeof connack_5)
                      : server_answer(server, fd, connack, sizeof connack);
}

/* SUBACK grants the QoS asked for each filter (3.9); UNSUBACK says success for each (3.11). */
static inline bool answer_subscription(struct server *server, int fd, uint8_t first,
                                       const uint8_t *body, uint32_t length)
{
    bool subscribing = first == 0x82, five = server->peers[fd].level == 5;
    uint8_t codes[512], packet[16], *end = packet;
    uint32_t at = 2, properties = 0, filters = 0;
    if (length < 2)
        return false;
    if (five) {
        int digits = get_length(body + 2, length - 2, &properties);
        if (digits <= 0 || properties > length - 2 - (uint32_t)digits)
            return false;
        at += (uint32_t)digits + properties;
    }
    while (at < length) {
        if (length - at < 2 || filters == sizeof codes)
            return false;
        at += 2 + get_u16(body + at) + subscribing;
        if (at > length)
            return false;
        codes[filters++] = subscribing ? body[at - 1] & 3 : 0;
    }
    if (!filters)
        return false;
    *end++ = subscribing ? 0x90 : 0xB0;
    if (!subscribing && !five)
        filters = 0; /* UNSUBACK of 3.1.1 has no payload */
    end = put_length(end, 2u + five + filters);
    *end++ = body[0];
    *end++ = body[1];
    if (five)
        *end++ = 0;
    if (subscribing) {
        server->peers[fd].subscribed = true;
        server->subscribes++;
    }
    return server_answer(server, fd, packet, (size_t)(end - packet)) &&
           server_answer(server, fd, codes, filters);
}

static inline bool answer_control(struct server *server, int fd, uint8_t first, const uint8_t *body,
                                  uint32_t length)
{
    static const uint8_t pingresp[] = {0xD0, 0};
    if (first == 0x10)
        return answer_connect(server, fd, body, length);
    if (!server->peers[fd].level)
        return false;
    if (first == 0x82 || first == 0xA2)
        return answer_subscription(server, fd, first, body, length);
    if (first == 0xC0) {
        server->pings++;
        return server_answer(server, fd, pingresp, sizeof pingresp);
    }
    return true; /* DISCONNECT, acknowledgements: nothing to say */
}

/* A read on a connection that is being dropped: answers the control packets at its very
 * beginning, where whole, and forgets the rest. */
static inline void answer_leading_controls(struct server *server, int fd, const uint8_t *data,
                                           size_t length)
{
    while (length >= 2 && (data[0] == 0xC0 || data[0] == 0x82 || data[0] == 0xA2)) {
        uint32_t body;
        int digits = get_length(data + 1, length - 1, &body);
        if (digits <= 0 || length < 1 + (size_t)digits + body || (data[0] == 0xC0 && body))
            return;
        if (!answer_control(server, fd, data[0], data + 1 + digits, body))
            return; /* it was the middle of a payload */
        data += 1 + (size_t)digits + body;
        length -= 1 + (size_t)digits + body;
    }
}

/* Follows the packets in `data`. Returns the bytes of an incomplete head at its end, or -1 for
 * a malformed packet. */
static inline ssize_t follow(struct server *server, int fd, const uint8_t *data, size_t length)
{
    struct peer *peer = &server->peers[fd];
    while (length) {
        uint32_t body;
        size_t head;
        int digits;
        if (peer->skip) {
            size_t step = peer->skip < length ? peer->skip : length;
            peer->skip -= (uint32_t)step;
            data += step;
            length -= step;
            continue;
        }
        if (!peer->level && data[0] != 0x10)
            return -1;
        digits = get_length(data + 1, length - 1, &body);
        if (digits < 0)
            return -1;
        if (!digits)
            return (ssize_t)length;
        head = 1 + (size_t)digits;
        if (data[0] >> 4 == 3) {
            unsigned qos = data[0] >> 1 & 3;
            if (qos == 3)
                return -1;
            if (!server->walk) {
                peer->dropping = true;
                return 0;
            }
            if (qos == 1 && server->acknowledge) {
                uint8_t puback[] = {0x40, 2, 0, 0};
                size_t identifier;
                if (body < 4)
                    return -1;
                if (length < head + 2)
                    return (ssize_t)length;
                identifier = head + 2 + get_u16(data + head);
                if (identifier + 2 > head + body || identifier + 2 > CONTROL_BYTES_MAX)
                    return -1;
                if (length < identifier + 2)
                    return (ssize_t)length;
                memcpy(puback + 2, data + identifier, 2);
                if (!server_answer(server, fd, puback, sizeof puback))
                    return -1;
                server->pubacks++;
            }
            server->publishes++;
            peer->skip = body;
            data += head;
            length -= head;
            continue;
        }
        if (head + body > CONTROL_BYTES_MAX)
            return -1;
        if (length < head + body)
            return (ssize_t)length;
        if (!answer_control(server, fd, data[0], data + head, body))
            return -1;
        data += head + body;
        length -= head + body;
    }
    return 0;
}

/* One read of one connection. False: the connection is over and the caller closes it. */
static inline bool server_read(struct server *server, int fd)
{
    struct peer *peer = &server->peers[fd];
    uint8_t *data = server->buffer;
    size_t tail = peer->tail_bytes;
    ssize_t left, count = recv(fd, data + tail, READ_BYTES, 0);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR;
    if (!count)
        return false;
    server->reads++;
    server->bytes += (uint64_t)count;
    if (peer->dropping) {
        if (data[0] >> 4 == 3)
            return true;
        answer_leading_controls(server, fd, data, (size_t)count);
        return server_flush(server, fd);
    }
    if (tail) {
        memcpy(data, peer->tail, tail);
        free(peer->tail);
        peer->tail = NULL;
        peer->tail_bytes = 0;
    }
    left = follow(server, fd, data, tail + (size_t)count);
    if (left < 0 || left > CONTROL_BYTES_MAX) {
        server->malformed++;
        server->reply_bytes = 0;
        return false;
    }
    if (left) {
        peer->tail = allocate(1, (size_t)left);
        memcpy(peer->tail, data + tail + (size_t)count - (size_t)left, (size_t)left);
        peer->tail_bytes = (uint16_t)left;
    }
    return server_flush(server, fd);
}

static inline void server_report(const struct server *server)
{
    json_count("accepted", server->accepted);
    json_count("refused", server->refused);
    json_count("open", server->open);
    json_count("peak", server->peak);
    json_count("closed", server->closed);
    json_count("malformed", server->malformed);
    json_count("stalled", server->stalled);
    json_count("connects", server->connects);
    json_count("subscribes", server->subscribes);
    json_count("pings", server->pings);
    json_count("reads", server->reads);
    json_count("bytes", server->bytes);
}

#endif
