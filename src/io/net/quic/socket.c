/* SPDX-License-Identifier: Apache-2.0 */
/* socket: one UDP socket that sends and receives many datagrams at a time. Where the kernel can, it splits
 * sent datagrams (UDP_SEGMENT) and joins received ones (UDP_GRO); recvmmsg and sendmmsg do the rest. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <netinet/udp.h>
#include <uv.h>

#include "quic_priv.h"

#define RX_MESSAGES   8
#define RX_BYTES      65536 /* Largest message that the kernel joins. */
#define TX_BYTES      ((size_t)192 * 1024)
#define TX_BATCHES    32
#define BATCH_BYTES   65000 /* Bytes of one message, below the limit of UDP over IPv4. */
#define BATCH_PARTS   64    /* The kernel's bound for UDP_SEGMENT. */
#define CONTROL_BYTES 128

/* Datagrams of one size (the last may be shorter) on one path. */
struct batch {
	size_t at, n, part;
	unsigned parts;
	bool shut; /* The last datagram was shorter, so the batch is complete. */
	uint8_t ecn;
	struct sockaddr_storage remote, local;
	socklen_t remote_len, local_len;
};

struct control {
	_Alignas(struct cmsghdr) char bytes[CONTROL_BYTES];
};

struct quic_socket {
	uv_poll_t poll;
	struct cgn_loop *loop;
	const struct quic_socket_ops *ops;
	void *arg;
	int fd, events;
	bool blocked, wildcard;
	struct sockaddr_storage local;
	socklen_t local_len;
	struct quic_socket_counts counts;
	struct batch batches[TX_BATCHES];
	unsigned n_batches;
	size_t tx_n;
	uint8_t tx[TX_BYTES];
	uint8_t rx[RX_MESSAGES][RX_BYTES];
};

/* ---- opening ---- */

static void option_set(int fd, int level, int name, int value)
{
	/* Each option is an improvement; none is required. */
	(void)setsockopt(fd, level, name, &value, sizeof value);
}

static bool try_set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

static void set_buffer(int fd, int forced, int plain, size_t bytes)
{
	int n = (int)(bytes / 2); /* The kernel doubles the value. */
	if (!try_set(fd, SOL_SOCKET, forced, n))
		option_set(fd, SOL_SOCKET, plain, n);
}

static void socket_tune(struct quic_socket *s, size_t kernel_buffer)
{
	int fd = s->fd, part = 0;
	socklen_t len = sizeof part;
	set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, kernel_buffer);
	set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, kernel_buffer);
	s->counts.gro = try_set(fd, SOL_UDP, UDP_GRO, 1);
	s->counts.gso = getsockopt(fd, SOL_UDP, UDP_SEGMENT, &part, &len) == 0;
	/* Never fragment: QUIC probes what a path carries. */
	if (s->local.ss_family == AF_INET6) {
		option_set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
		option_set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
		option_set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
	} else {
		option_set(fd, IPPROTO_IP, IP_PKTINFO, 1);
	}
	option_set(fd, IPPROTO_IP, IP_RECVTOS, 1);
	option_set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
}

static bool is_wildcard(const struct sockaddr_storage *ss)
{
	if (ss->ss_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)ss)->sin6_addr);
	return ((const struct sockaddr_in *)(const void *)ss)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static CGN_RC bind_to(struct quic_socket *s, const struct addrinfo *ai, const char *addr, struct cgn_err *err)
{
	s->fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0)
		return CGN_FAIL(err, UNAVAILABLE, "no UDP socket for %s: %s", addr, strerror(errno));
	if (ai->ai_family == AF_INET6)
		option_set(s->fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	if (bind(s->fd, ai->ai_addr, ai->ai_addrlen) != 0 && errno == EADDRINUSE)
		return CGN_FAIL(err, ADDRESS_IN_USE, "UDP %s is in use by another socket", addr);
	s->local_len = sizeof s->local;
	if (getsockname(s->fd, (struct sockaddr *)&s->local, &s->local_len) != 0 || quic_socket_port(s) == 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot bind UDP %s: %s", addr, strerror(errno));
	s->wildcard = is_wildcard(&s->local);
	return CGN_OK;
}

static CGN_RC bind_text(struct quic_socket *s, const char *addr, struct cgn_err *err)
{
	struct net_addr a;
	struct addrinfo *list = NULL;
	CGN_TRY(net_addr_parse(addr, &a, err));
	if (a.local || net_addr_resolve(&a, true, true, &list) != 0)
		return CGN_FAIL(err, INVALID, "address \"%s\": QUIC listens at a numeric address and a port",
			addr);
	cgn_rc rc = bind_to(s, list, addr, err);
	freeaddrinfo(list);
	return rc;
}

static void on_poll(uv_poll_t *h, int status, int events);

static void socket_watch(struct quic_socket *s)
{
	int events = UV_READABLE | (s->blocked ? UV_WRITABLE : 0);
	if (events == s->events)
		return;
	s->events = events;
	CGN_MUST(uv_poll_start(&s->poll, events, on_poll) == 0);
}

CGN_RC quic_socket_open(struct cgn_loop *l, const char *addr, size_t kernel_buffer,
	const struct quic_socket_ops *ops, void *arg, struct quic_socket **out, struct cgn_err *err)
{
	struct quic_socket *s = CGN_NEW(struct quic_socket);
	s->loop = l;
	s->ops = ops;
	s->arg = arg;
	s->fd = -1;
	cgn_rc rc = bind_text(s, addr, err);
	if (cgn_ok(rc) && uv_poll_init(cgn_loop_uv(l), &s->poll, s->fd) != 0)
		rc = CGN_FAIL(err, UNAVAILABLE, "cannot watch the UDP socket %s", addr);
	if (!cgn_ok(rc)) {
		if (s->fd >= 0)
			close(s->fd);
		free(s);
		return rc;
	}
	s->poll.data = s;
	socket_tune(s, kernel_buffer);
	socket_watch(s);
	*out = s;
	return CGN_OK;
}

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

void quic_socket_close(struct quic_socket **take)
{
	struct quic_socket *s = CGN_TAKE(take);
	if (s == NULL)
		return;
	s->blocked = false;
	quic_socket_flush(s);
	uv_close((uv_handle_t *)&s->poll, on_closed);
	close(s->fd);
}

unsigned quic_socket_port(const struct quic_socket *s)
{
	/* The port is at the same offset in both structures. */
	return ntohs(((const struct sockaddr_in *)(const void *)&s->local)->sin_port);
}

struct quic_socket_counts quic_socket_counts(const struct quic_socket *s)
{
	return s->counts;
}

bool quic_socket_blocked(const struct quic_socket *s)
{
	return s->blocked;
}

/* ---- the address of ours ---- */

static void take_port(struct sockaddr_storage *ss, const struct quic_socket *s)
{
	((struct sockaddr_in *)(void *)ss)->sin_port =
		((const struct sockaddr_in *)(const void *)&s->local)->sin_port;
}

void quic_socket_adapt(const struct quic_socket *s, struct sockaddr_storage *remote, socklen_t *len)
{
	if (s->local.ss_family != AF_INET6 || remote->ss_family != AF_INET)
		return;
	struct sockaddr_in in;
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
	memcpy(&in, remote, sizeof in);
	in6.sin6_port = in.sin_port;
	in6.sin6_addr.s6_addr[10] = in6.sin6_addr.s6_addr[11] = 0xff;
	memcpy(&in6.sin6_addr.s6_addr[12], &in.sin_addr, sizeof in.sin_addr);
	memcpy(remote, &in6, sizeof in6);
	*len = sizeof in6;
}

CGN_RC quic_socket_route(const struct quic_socket *s, const struct sockaddr_storage *remote, socklen_t len,
	struct sockaddr_storage *local, socklen_t *local_len, unsigned *mtu, struct cgn_err *err)
{
	int value = 0;
	socklen_t value_len = sizeof value;
	bool v6 = s->local.ss_family == AF_INET6;
	int fd = socket(s->local.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	*local_len = sizeof *local;
	bool ok = fd >= 0 && connect(fd, (const struct sockaddr *)remote, len) == 0 &&
		getsockname(fd, (struct sockaddr *)local, local_len) == 0;
	int e = errno;
	if (ok &&
		getsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &value, &value_len) !=
			0)
		value = 0;
	if (fd >= 0)
		close(fd);
	if (!ok)
		return CGN_FAIL(err, UNAVAILABLE, "no route: %s", strerror(e));
	if (!s->wildcard) {
		*local = s->local;
		*local_len = s->local_len;
	}
	take_port(local, s);
	*mtu = value > 0 ? (unsigned)value : 0;
	return CGN_OK;
}

/* ---- receiving ---- */

struct received {
	size_t part; /* Size of each joined datagram but the last; 0: a single datagram. */
	uint8_t ecn;
	struct sockaddr_storage local;
	socklen_t local_len;
};

static void read_control(const struct quic_socket *s, struct msghdr *m, struct received *r)
{
	*r = (struct received){.local = s->local, .local_len = s->local_len};
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
		int value = 0;
		if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
			memcpy(&value, CMSG_DATA(c), sizeof value);
			r->part = value > 0 ? (size_t)value : 0;
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
			r->ecn = *CMSG_DATA(c) & 3;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			memcpy(&value, CMSG_DATA(c), sizeof value);
			r->ecn = (uint8_t)(value & 3);
		} else if (s->wildcard && c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO &&
			s->local.ss_family == AF_INET) {
			struct in_pktinfo info;
			memcpy(&info, CMSG_DATA(c), sizeof info);
			((struct sockaddr_in *)(void *)&r->local)->sin_addr = info.ipi_addr;
		} else if (s->wildcard && c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			struct in6_pktinfo info;
			memcpy(&info, CMSG_DATA(c), sizeof info);
			((struct sockaddr_in6 *)(void *)&r->local)->sin6_addr = info.ipi6_addr;
		}
	}
}

static void datagrams_deliver(struct quic_socket *s, struct msghdr *m, const uint8_t *p, size_t n)
{
	struct received r;
	read_control(s, m, &r);
	ngtcp2_path path = {.local = {(ngtcp2_sockaddr *)&r.local, r.local_len},
		.remote = {(ngtcp2_sockaddr *)m->msg_name, m->msg_namelen}};
	size_t part = r.part > 0 ? r.part : n;
	for (size_t at = 0; at < n && s->ops != NULL; at += part) {
		size_t len = n - at < part ? n - at : part;
		s->counts.packets_in++;
		s->counts.bytes_in += len;
		s->ops->on_packet(s->arg, &path, r.ecn, p + at, len);
	}
}

/* Receive one batch a turn, so that acknowledgements are sent and other connections get their turn before the
 * next. */
static void batch_receive(struct quic_socket *s)
{
	struct mmsghdr m[RX_MESSAGES];
	struct iovec iov[RX_MESSAGES];
	struct sockaddr_storage from[RX_MESSAGES];
	struct control control[RX_MESSAGES];
	for (unsigned i = 0; i < RX_MESSAGES; i++) {
		iov[i] = (struct iovec){s->rx[i], RX_BYTES};
		m[i].msg_hdr = (struct msghdr){.msg_name = &from[i],
			.msg_namelen = sizeof from[i],
			.msg_iov = &iov[i],
			.msg_iovlen = 1,
			.msg_control = control[i].bytes,
			.msg_controllen = CONTROL_BYTES};
	}
	int n = recvmmsg(s->fd, m, RX_MESSAGES, MSG_DONTWAIT, NULL);
	/* Nothing to read, or an error of an earlier datagram, which QUIC treats as a loss. */
	if (n < 0)
		return;
	s->counts.receives++;
	for (int i = 0; i < n && s->ops != NULL; i++)
		if ((m[i].msg_hdr.msg_flags & MSG_TRUNC) == 0)
			datagrams_deliver(s, &m[i].msg_hdr, s->rx[i], m[i].msg_len);
}

static void on_poll(uv_poll_t *h, int status, int events)
{
	struct quic_socket *s = h->data;
	if (status < 0) { /* libuv stopped watching. */
		s->events = 0;
		socket_watch(s);
		return;
	}
	if ((events & UV_READABLE) != 0)
		batch_receive(s);
	if ((events & UV_WRITABLE) != 0 && s->blocked) {
		s->blocked = false;
		quic_socket_flush(s);
		if (!s->blocked)
			s->ops->on_writable(s->arg);
	}
	socket_watch(s);
}

/* ---- sending ---- */

uint8_t *quic_socket_room(struct quic_socket *s, size_t most)
{
	if (TX_BYTES - s->tx_n < most || s->n_batches == TX_BATCHES)
		quic_socket_flush(s);
	if (s->blocked || TX_BYTES - s->tx_n < most || s->n_batches == TX_BATCHES)
		return NULL;
	return s->tx + s->tx_n;
}

static bool same_addr(const struct sockaddr_storage *a, socklen_t a_len, const ngtcp2_addr *b)
{
	return a_len == b->addrlen && memcmp(a, b->addr, a_len) == 0;
}

static bool batch_fits(const struct quic_socket *s, const struct batch *b, size_t n, const ngtcp2_path *path,
	uint8_t ecn)
{
	return s->counts.gso && !b->shut && n <= b->part && b->n + n <= BATCH_BYTES &&
		b->parts < BATCH_PARTS && b->ecn == ecn &&
		same_addr(&b->remote, b->remote_len, &path->remote) &&
		same_addr(&b->local, b->local_len, &path->local);
}

static void copy_addr(struct sockaddr_storage *to, socklen_t *len, const ngtcp2_addr *from)
{
	CGN_MUST(from->addrlen <= sizeof *to);
	memcpy(to, from->addr, from->addrlen);
	*len = from->addrlen;
}

void quic_socket_commit(struct quic_socket *s, size_t n, const ngtcp2_path *path, uint8_t ecn)
{
	struct batch *b = s->n_batches > 0 ? &s->batches[s->n_batches - 1] : NULL;
	CGN_MUST(TX_BYTES - s->tx_n >= n && n > 0);
	if (b == NULL || !batch_fits(s, b, n, path, ecn)) {
		CGN_MUST(s->n_batches < TX_BATCHES);
		b = &s->batches[s->n_batches++];
		b->at = s->tx_n;
		b->n = b->parts = 0;
		b->part = n;
		b->shut = false;
		b->ecn = ecn;
		copy_addr(&b->remote, &b->remote_len, &path->remote);
		copy_addr(&b->local, &b->local_len, &path->local);
	}
	b->shut = n < b->part;
	b->n += n;
	b->parts++;
	s->tx_n += n;
}

static void put_control(struct msghdr *m, int level, int type, const void *p, size_t n)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)((char *)m->msg_control + m->msg_controllen);
	CGN_MUST(m->msg_controllen + CMSG_SPACE(n) <= CONTROL_BYTES);
	memset(c, 0, CMSG_SPACE(n));
	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(n);
	memcpy(CMSG_DATA(c), p, n);
	m->msg_controllen += CMSG_SPACE(n);
}

/* Answer from the address to which the peer sent. */
static void put_source(const struct quic_socket *s, const struct batch *b, struct msghdr *m)
{
	if (!s->wildcard)
		return;
	if (s->local.ss_family == AF_INET) {
		struct in_pktinfo info = {
			.ipi_spec_dst = ((const struct sockaddr_in *)(const void *)&b->local)->sin_addr};
		put_control(m, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
	} else {
		struct in6_pktinfo info = {
			.ipi6_addr = ((const struct sockaddr_in6 *)(const void *)&b->local)->sin6_addr};
		put_control(m, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
	}
}

static void put_ecn(const struct batch *b, struct msghdr *m)
{
	int ecn = b->ecn;
	if (ecn == 0)
		return;
	if (b->remote.ss_family == AF_INET6)
		put_control(m, IPPROTO_IPV6, IPV6_TCLASS, &ecn, sizeof ecn);
	else
		put_control(m, IPPROTO_IP, IP_TOS, &ecn, sizeof ecn);
}

static void fill_message(struct quic_socket *s, struct batch *b, struct msghdr *m, struct iovec *iov,
	struct control *control)
{
	*iov = (struct iovec){s->tx + b->at, b->n};
	*m = (struct msghdr){.msg_name = &b->remote,
		.msg_namelen = b->remote_len,
		.msg_iov = iov,
		.msg_iovlen = 1,
		.msg_control = control->bytes};
	if (b->parts > 1) {
		uint16_t part = (uint16_t)b->part;
		put_control(m, SOL_UDP, UDP_SEGMENT, &part, sizeof part);
	}
	put_source(s, b, m);
	put_ecn(b, m);
	if (m->msg_controllen == 0)
		m->msg_control = NULL;
}

/* The kernel or its device cannot split: send each datagram on its own, for this batch and all later ones. */
static void send_apart(struct quic_socket *s, struct batch *b)
{
	s->counts.gso = false;
	size_t end = b->at + b->n;
	unsigned parts = b->parts;
	for (size_t at = b->at; at < end; at += b->part) {
		struct msghdr m;
		struct iovec iov;
		struct control control;
		b->parts = 1;
		fill_message(s, b, &m, &iov, &control);
		iov = (struct iovec){s->tx + at, end - at < b->part ? end - at : b->part};
		(void)sendmsg(s->fd, &m, MSG_NOSIGNAL); /* A datagram that is not sent counts as lost. */
		s->counts.sends++;
	}
	b->parts = parts;
}

/* Drop batches that were sent or that cannot be sent. */
static void drop_first(struct quic_socket *s, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		s->counts.packets_out += s->batches[i].parts;
		s->counts.bytes_out += s->batches[i].n;
	}
	s->n_batches -= n;
	memmove(s->batches, s->batches + n, s->n_batches * sizeof s->batches[0]);
	if (s->n_batches == 0)
		s->tx_n = 0;
}

static int send_some(struct quic_socket *s)
{
	struct mmsghdr m[TX_BATCHES];
	struct iovec iov[TX_BATCHES];
	struct control control[TX_BATCHES];
	for (unsigned i = 0; i < s->n_batches; i++)
		fill_message(s, &s->batches[i], &m[i].msg_hdr, &iov[i], &control[i]);
	s->counts.sends++;
	return sendmmsg(s->fd, m, s->n_batches, MSG_NOSIGNAL);
}

void quic_socket_flush(struct quic_socket *s)
{
	while (s->n_batches > 0 && !s->blocked) {
		int n = send_some(s);
		if (n > 0) {
			drop_first(s, (unsigned)n);
		} else if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
			s->blocked = true;
			socket_watch(s);
		} else if (n < 0 && errno == EINTR) {
			continue;
		} else { /* EIO, EINVAL: no splitting; EMSGSIZE, EPERM, ENETUNREACH: treat as lost. */
			if (s->batches[0].parts > 1)
				send_apart(s, &s->batches[0]);
			drop_first(s, 1);
		}
	}
}
