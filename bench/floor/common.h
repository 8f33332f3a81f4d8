/* What the programs of this folder share: options, clock, processor time, JSON, MQTT packets, dialling.
 *
 * Every program prints one JSON object on stdout and talks to people on stderr.
 * Exit status: 0 done, 2 bad usage, 3 it could not run. */
#ifndef FLOOR_COMMON_H
#define FLOOR_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum {
    EXIT_USAGE = 2,
    EXIT_CANNOT_RUN = 3,
    READ_BYTES = 256 * 1024, /* one buffer, shared by every connection */
    PAYLOAD_BYTES = 32,
    TOPIC_BYTES_MAX = 200,
    PUBLISH_BYTES_MAX = 5 + 2 + TOPIC_BYTES_MAX + 1 + PAYLOAD_BYTES,
    DESCRIPTORS_SPARE = 32,
    EXACT_WAKEUPS_PER_S_MAX = 20000, /* beyond it a wake-up a write costs more than the write */
    TICK_DEFAULT_US = 1000,
};

static const char *program_name = "floor";
static volatile sig_atomic_t stop_requested;

/* ---------------------------------------------------------------- errors and signals */

__attribute__((noreturn, format(printf, 2, 3))) static void die(int status, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s: ", program_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(status);
}

static inline void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory)
        die(EXIT_CANNOT_RUN, "out of memory for %zu items of %zu bytes", count, bytes);
    return memory;
}

static inline void on_stop(int number)
{
    (void)number;
    stop_requested = 1;
}

/* SIGTERM and SIGINT stay blocked except inside epoll_pwait, so that none is lost between
 * looking at the flag and going to sleep. */
static inline sigset_t catch_stop_signals(void)
{
    struct sigaction action = {.sa_handler = on_stop};
    sigset_t blocked, waiting;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigprocmask(SIG_BLOCK, &blocked, &waiting);
    sigdelset(&waiting, SIGTERM);
    sigdelset(&waiting, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return waiting;
}

/* ---------------------------------------------------------------- options: one table gives parser and help */

struct option_row {
    const char *name;
    char kind; /* 'n' long, 'f' double, 's' string, 'b' flag (int) */
    void *value;
    double lowest, highest; /* of numbers */
    const char *help;
};

static inline void print_help(const char *what, const char *example, const struct option_row *rows)
{
    printf("%s: %s\n\n", program_name, what);
    for (; rows->name; rows++) {
        char fallback[96] = "";
        if (rows->kind == 'n')
            snprintf(fallback, sizeof fallback, " [%ld]", *(long *)rows->value);
        else if (rows->kind == 'f')
            snprintf(fallback, sizeof fallback, " [%g]", *(double *)rows->value);
        else if (rows->kind == 's' && *(char **)rows->value)
            snprintf(fallback, sizeof fallback, " [%s]", *(char **)rows->value);
        printf("  --%-18s %s%s\n", rows->name, rows->help, fallback);
    }
    printf("  --%-18s %s\n\nexample: %s\n", "help", "show this", example);
}

static inline void set_option(const struct option_row *row, const char *text)
{
    char *end = NULL;
    double number;
    if (row->kind == 's') {
        *(const char **)row->value = text;
        return;
    }
    errno = 0;
    number = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(number) || number < row->lowest ||
        number > row->highest || (row->kind == 'n' && number != floor(number)))
        die(EXIT_USAGE, "--%s must be a%s number from %.15g to %.15g, not '%.40s'", row->name,
            row->kind == 'n' ? " whole" : "", row->lowest, row->highest, text);
    if (row->kind == 'n')
        *(long *)row->value = (long)number;
    else
        *(double *)row->value = number;
}

/* `--name value`, `--name=value` and, for a flag, `--name`. */
static inline void parse_options(int argc, char **argv, const char *name, const char *what,
                                 const char *example, const struct option_row *rows)
{
    program_name = name;
    for (int i = 1; i < argc; i++) {
        const char *given = argv[i];
        const struct option_row *row = rows;
        size_t length;
        const char *equals;
        if (!strcmp(given, "--help") || !strcmp(given, "-h")) {
            print_help(what, example, rows);
            exit(0);
        }
        if (strncmp(given, "--", 2))
            die(EXIT_USAGE, "'%.40s' is no option; see --help", given);
        given += 2;
        equals = strchr(given, '=');
        length = equals ? (size_t)(equals - given) : strlen(given);
        while (row->name && (strlen(row->name) != length || strncmp(row->name, given, length)))
            row++;
        if (!row->name)
            die(EXIT_USAGE, "unknown option '--%.40s'; see --help", given);
        if (row->kind == 'b') {
            if (equals)
                die(EXIT_USAGE, "--%s takes no value", row->name);
            *(int *)row->value = 1;
        } else if (equals) {
            set_option(row, equals + 1);
        } else if (i + 1 < argc) {
            set_option(row, argv[++i]);
        } else {
            die(EXIT_USAGE, "--%s needs a value", row->name);
        }
    }
}

/* Returns the protocol level of CONNECT: 4 for 3.1.1, 5 for 5. */
static inline uint8_t protocol_level(const char *text)
{
    if (!strcmp(text, "3.1.1"))
        return 4;
    if (!strcmp(text, "5"))
        return 5;
    die(EXIT_USAGE, "--mqtt must be 3.1.1 or 5, not '%.40s'", text);
}

/* ---------------------------------------------------------------- clock, processor time, memory */

static inline uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* A moment and the processor time used until then. The kernel keeps the sum exactly and
 * splits it by sampling: trust `cpu_s`, take user and system as their rough shares. */
struct usage {
    uint64_t wall_ns;
    double user_s, system_s;
};

static inline struct usage usage_now(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (struct usage){
        .wall_ns = now_ns(),
        .user_s = (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6,
        .system_s = (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec / 1e6,
    };
}

static inline double cpu_s_between(struct usage from, struct usage to)
{
    return to.user_s - from.user_s + to.system_s - from.system_s;
}

static inline long resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%*s %ld", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    return pages * sysconf(_SC_PAGESIZE);
}

/* Sleeping and polling are late by the timer slack, 50 us unless told otherwise. */
static inline void ask_exact_timers(void)
{
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}

/* Returns how many descriptors this process may open. */
static inline long raise_descriptor_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur > 1048576 ? 1048576 : (long)limit.rlim_cur;
}

static inline void need_descriptors(long connections)
{
    long limit = raise_descriptor_limit();
    if (connections + DESCRIPTORS_SPARE > limit)
        die(EXIT_CANNOT_RUN, "%ld connections need %ld descriptors; this process may open %ld",
            connections, connections + DESCRIPTORS_SPARE, limit);
}

/* ---------------------------------------------------------------- JSON: names and numbers only */

static const char *json_separator = "";

static inline void json_name(const char *name)
{
    printf("%s\"%s\": ", json_separator, name);
    json_separator = ", ";
}

static inline void json_open(const char *name)
{
    if (name)
        json_name(name);
    putchar('{');
    json_separator = "";
}

static inline void json_close(void)
{
    putchar('}');
    json_separator = ", ";
}

static inline void json_count(const char *name, uint64_t value)
{
    json_name(name);
    printf("%llu", (unsigned long long)value);
}

static inline void json_number(const char *name, double value)
{
    json_name(name);
    if (isfinite(value))
        printf("%.9g", value);
    else
        printf("null");
}

static inline void json_bool(const char *name, bool value)
{
    json_name(name);
    printf(value ? "true" : "false");
}

/* `value` is a word of the program's own, never text from outside: nothing is escaped. */
static inline void json_word(const char *name, const char *value)
{
    json_name(name);
    printf("\"%s\"", value);
}

static inline void json_usage(const char *name, struct usage from, struct usage to)
{
    json_open(name);
    json_number("seconds", (double)(to.wall_ns - from.wall_ns) / 1e9);
    json_number("cpu_s", cpu_s_between(from, to));
    json_number("user_s", to.user_s - from.user_s);
    json_number("system_s", to.system_s - from.system_s);
    json_close();
}

/* The end of every report: the whole life of the process. */
static inline void json_finish(struct usage started)
{
    json_usage("process", started, usage_now());
    json_count("rss_bytes", (uint64_t)resident_bytes());
    json_close();
    putchar('\n');
    fflush(stdout);
}

static inline int compare_u64(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Rank of HdrHistogram: max(int(p * total / 100 + 0.5), 1). `sorted` ascends. */
static inline uint64_t percentile(const uint64_t *sorted, uint64_t count, double percent)
{
    uint64_t rank = (uint64_t)(percent * (double)count / 100.0 + 0.5);
    return sorted[rank ? rank - 1 : 0];
}

/* Sorts `values` in place and reports them; null where there are none. */
static inline void json_distribution(const char *name, uint64_t *values, uint64_t count)
{
    double sum = 0;
    if (!count) {
        json_number(name, NAN);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i];
    qsort(values, count, sizeof *values, compare_u64);
    json_open(name);
    json_number("mean", sum / (double)count);
    json_count("p50", percentile(values, count, 50));
    json_count("p90", percentile(values, count, 90));
    json_count("p99", percentile(values, count, 99));
    json_count("p999", percentile(values, count, 99.9));
    json_count("max", values[count - 1]);
    json_close();
}

/* ---------------------------------------------------------------- epoll and pacing */

static inline void watch(int epoll, int operation, int fd, uint32_t interest)
{
    struct epoll_event event = {.events = interest, .data.fd = fd};
    if (epoll_ctl(epoll, operation, fd, &event))
        die(EXIT_CANNOT_RUN, "epoll_ctl: %s", strerror(errno));
}

static inline int new_epoll(void)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die(EXIT_CANNOT_RUN, "epoll_create1: %s", strerror(errno));
    return epoll;
}

static inline int new_timer(int epoll)
{
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer < 0)
        die(EXIT_CANNOT_RUN, "timerfd_create: %s", strerror(errno));
    watch(epoll, EPOLL_CTL_ADD, timer, EPOLLIN);
    return timer;
}

/* Arming again also clears the last expiry, so nobody reads the descriptor. 0 disarms. */
static inline void arm_timer(int timer, uint64_t at_ns)
{
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000u),
                                           .tv_nsec = (long)(at_ns % 1000000000u)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* An open-loop schedule of `total` messages: number k is due at start + k / rate, and what is
 * late stays owed. `batch` messages leave together, when the first of them is due. */
struct pacer {
    uint64_t start_ns, tick_ns; /* tick 0: a wake-up for every batch */
    uint64_t total, batch;
    double interval_ns; /* between messages */
};

static inline struct pacer new_pacer(double rate, double seconds, long batch, long tick_us)
{
    if (tick_us < 0)
        tick_us = rate / (double)batch > EXACT_WAKEUPS_PER_S_MAX ? TICK_DEFAULT_US : 0;
    return (struct pacer){
        .tick_ns = (uint64_t)tick_us * 1000u,
        .total = (uint64_t)(rate * seconds + 0.5),
        .batch = (uint64_t)batch,
        .interval_ns = 1e9 / rate,
    };
}

static inline uint64_t due_ns(const struct pacer *pacer, uint64_t message)
{
    return pacer->start_ns + (uint64_t)((double)message * pacer->interval_ns);
}

/* How many messages ought to have left by `now`. */
static inline uint64_t owed(const struct pacer *pacer, uint64_t now)
{
    uint64_t count;
    if (now < pacer->start_ns)
        return 0;
    count = (uint64_t)((double)(now - pacer->start_ns) / pacer->interval_ns) / pacer->batch;
    count = (count + 1) * pacer->batch;
    return count < pacer->total ? count : pacer->total;
}

static inline uint64_t wake_ns(const struct pacer *pacer, uint64_t sent, uint64_t now)
{
    if (!pacer->tick_ns || now < pacer->start_ns)
        return due_ns(pacer, sent);
    return pacer->start_ns + ((now - pacer->start_ns) / pacer->tick_ns + 1) * pacer->tick_ns;
}

/* ---------------------------------------------------------------- MQTT packets */

static inline uint8_t *put_u16(uint8_t *out, unsigned value)
{
    *out++ = (uint8_t)(value >> 8);
    *out++ = (uint8_t)value;
    return out;
}

static inline uint8_t *put_string(uint8_t *out, const char *text)
{
    size_t length = strlen(text);
    out = put_u16(out, (unsigned)length);
    memcpy(out, text, length);
    return out + length;
}

static inline uint8_t *put_length(uint8_t *out, uint32_t length)
{
    do {
        uint8_t digit = length & 0x7f;
        length >>= 7;
        *out++ = (uint8_t)(digit | (length ? 0x80 : 0));
    } while (length);
    return out;
}

/* Variable byte integer at `data`. Returns its bytes, 0 when it is not all there, -1 when it
 * is longer than four. */
static inline int get_length(const uint8_t *data, size_t available, uint32_t *length)
{
    *length = 0;
    for (int i = 0; i < 4; i++) {
        if ((size_t)i >= available)
            return 0;
        *length |= (uint32_t)(data[i] & 0x7f) << (7 * i);
        if (!(data[i] & 0x80))
            return i + 1;
    }
    return -1;
}

/* CONNECT, clean start, keep-alive off. `out` holds at least 128 bytes, `client_id` at most 64. */
static inline size_t encode_connect(uint8_t *out, uint8_t level, const char *client_id)
{
    uint8_t *end = out;
    uint32_t body = 10u + (level == 5) + 2u + (uint32_t)strlen(client_id);
    *end++ = 0x10;
    end = put_length(end, body);
    end = put_string(end, "MQTT");
    *end++ = level;
    *end++ = 0x02;
    end = put_u16(end, 0);
    if (level == 5)
        *end++ = 0;
    return (size_t)(put_string(end, client_id) - out);
}

/* SUBSCRIBE with packet identifier 1, QoS 0. `out` holds at least TOPIC_BYTES_MAX + 16. */
static inline size_t encode_subscribe(uint8_t *out, uint8_t level, const char *filter)
{
    uint8_t *end = out;
    *end++ = 0x82;
    end = put_length(end, 2u + (level == 5) + 2u + (uint32_t)strlen(filter) + 1u);
    end = put_u16(end, 1);
    if (level == 5)
        *end++ = 0;
    end = put_string(end, filter);
    *end++ = 0;
    return (size_t)(end - out);
}

/* PUBLISH, QoS 0, payload of PAYLOAD_BYTES zeros at the end. `out` holds PUBLISH_BYTES_MAX. */
static inline size_t encode_publish(uint8_t *out, uint8_t level, const char *topic)
{
    uint8_t *end = out;
    *end++ = 0x30;
    end = put_length(end, 2u + (uint32_t)strlen(topic) + (level == 5) + PAYLOAD_BYTES);
    end = put_string(end, topic);
    if (level == 5)
        *end++ = 0;
    memset(end, 0, PAYLOAD_BYTES);
    return (size_t)(end + PAYLOAD_BYTES - out);
}

static inline void check_topic(const char *option, const char *topic)
{
    if (!*topic || strlen(topic) > TOPIC_BYTES_MAX - 12)
        die(EXIT_USAGE, "--%s must have 1 to %d bytes", option, TOPIC_BYTES_MAX - 12);
}

/* Copies `pattern`, its first "{i}" replaced by `index`. `out` holds TOPIC_BYTES_MAX. */
static inline void expand_topic(char *out, const char *pattern, unsigned long index)
{
    const char *mark = strstr(pattern, "{i}");
    if (mark)
        snprintf(out, TOPIC_BYTES_MAX, "%.*s%lu%s", (int)(mark - pattern), pattern, index, mark + 3);
    else
        snprintf(out, TOPIC_BYTES_MAX, "%s", pattern);
}

/* ---------------------------------------------------------------- client side */

static inline struct in_addr resolve(const char *host)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct in_addr address;
    int failed = getaddrinfo(host, NULL, &hints, &found);
    if (failed)
        die(EXIT_USAGE, "cannot find the IPv4 address of '%.80s': %s", host, gai_strerror(failed));
    address = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
    freeaddrinfo(found);
    return address;
}

/* A TCP socket without Nagle's delay, bound to `source` where given. Without
 * IP_BIND_ADDRESS_NO_PORT the port would be chosen at bind, before the destination is known,
 * and every port could serve one connection only. Returns -1 with errno. */
static inline int new_socket(int flags, const struct in_addr *source)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* With a range of its own a socket does not look for ports of one parity first, which takes
     * most of a millisecond once these are used; IP_LOCAL_PORT_RANGE of ip(7). */
    setsockopt(fd, IPPROTO_IP, 51, &(uint32_t){65535u << 16}, sizeof(uint32_t));
    if (source) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = *source};
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&from, sizeof from)) {
            int failed = errno;
            close(fd);
            errno = failed;
            return -1;
        }
    }
    return fd;
}

/* Reads exactly `length` bytes of a blocking socket. */
static inline void read_exactly(int fd, uint8_t *out, size_t length)
{
    while (length) {
        ssize_t count = recv(fd, out, length, 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            die(EXIT_CANNOT_RUN, "no answer from the broker: %s",
                count ? strerror(errno) : "it closed the connection");
        out += count;
        length -= (size_t)count;
    }
}

/* Waits for a packet whose first byte is `first`; reads no byte beyond it, so that what
 * follows begins at a packet's edge. Returns the length of its body, held in `body`. */
static inline uint32_t await_packet(int fd, uint8_t first, uint8_t *body, size_t room)
{
    uint8_t head[5];
    uint32_t length = 0;
    size_t have = 2;
    int digits;
    read_exactly(fd, head, 2);
    while ((digits = get_length(head + 1, have - 1, &length)) == 0)
        read_exactly(fd, head + have++, 1);
    if (head[0] != first || digits < 0 || length > room)
        die(EXIT_CANNOT_RUN, "expected a packet 0x%02x from the broker, not 0x%02x of %u bytes",
            first, head[0], length);
    read_exactly(fd, body, length);
    return length;
}

static inline void send_exactly(int fd, const uint8_t *data, size_t length)
{
    if (send(fd, data, length, MSG_NOSIGNAL) != (ssize_t)length)
        die(EXIT_CANNOT_RUN, "cannot send to the broker: %s", strerror(errno));
}

struct target {
    struct sockaddr_in address;
    struct in_addr source;
    bool bound;
    uint8_t level;
};

static inline struct target new_target(const char *host, long port, const char *source,
                                       const char *mqtt)
{
    struct target target = {.address = {.sin_family = AF_INET,
                                        .sin_addr = resolve(host),
                                        .sin_port = htons((uint16_t)port)},
                            .bound = source != NULL,
                            .level = protocol_level(mqtt)};
    if (source)
        target.source = resolve(source);
    return target;
}

/* Connects, CONNECT, CONNACK; gives up after ten seconds. Returns a blocking socket. */
static inline int dial(const struct target *target, const char *role, long index)
{
    struct timeval patience = {.tv_sec = 10};
    uint8_t packet[512];
    char client_id[64];
    int fd = new_socket(0, target->bound ? &target->source : NULL);
    if (fd < 0)
        die(EXIT_CANNOT_RUN, "socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (const struct sockaddr *)&target->address, sizeof target->address))
        die(EXIT_CANNOT_RUN, "cannot connect to port %d: %s", ntohs(target->address.sin_port),
            strerror(errno));
    snprintf(client_id, sizeof client_id, "%s-%d-%ld", role, (int)getpid(), index);
    send_exactly(fd, packet, encode_connect(packet, target->level, client_id));
    if (await_packet(fd, 0x20, packet, sizeof packet) < 2 || packet[1])
        die(EXIT_CANNOT_RUN, "the broker refused the connection, code %d", packet[1]);
    return fd;
}

static inline void subscribe(int fd, uint8_t level, const char *filter)
{
    uint8_t packet[512];
    uint32_t length;
    send_exactly(fd, packet, encode_subscribe(packet, level, filter));
    length = await_packet(fd, 0x90, packet, sizeof packet);
    if (length < 3 || packet[length - 1] >= 0x80)
        die(EXIT_CANNOT_RUN, "the broker refused the subscription");
}

static inline void set_nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* Writes all of it, waiting where the peer is slow: later messages are then late, never
 * forgotten. `blocked` counts the waits. False when the peer is gone or takes nothing for
 * `patience_ms`. */
static inline bool write_all(int fd, const uint8_t *data, size_t length, int patience_ms,
                             uint64_t *blocked)
{
    for (;;) {
        ssize_t count = send(fd, data, length, MSG_NOSIGNAL);
        struct pollfd writable = {.fd = fd, .events = POLLOUT};
        if (count == (ssize_t)length)
            return true;
        if (count < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (count > 0) {
            data += count;
            length -= (size_t)count;
        }
        (*blocked)++;
        if (poll(&writable, 1, patience_ms) == 0)
            return false;
    }
}

#endif
