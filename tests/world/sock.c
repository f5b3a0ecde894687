/* SPDX-License-Identifier: Apache-2.0 */
/* sock: connections and datagrams between simulated machines. What one side sends is cut into segments by the seed, each
 * with a delay of its own, and arrives in order. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "sock_priv.h"

#define RETRY_FIRST (200 * WORLD_MS) /* TCP's first repetition */
#define GIVE_UP     (15 * WORLD_SEC) /* A connection without an answer for so long ends */
#define LOOPBACK    0x7f000001U

/* ---- changes ---- */

void sock_watch(struct sock *s, struct sock_watch *w, void (*changed)(struct sock_watch *w))
{
	w->changed = changed;
	cgn_list_push(&s->watches, &w->link);
}

static void sock_changed(struct sock *s)
{
	cgn_list_each_safe (l, &s->watches) {
		struct sock_watch *w = CGN_CONTAINER(l, struct sock_watch, link);
		w->changed(w);
	}
}

static size_t sock_room(const struct sock *s)
{
	const struct sock *to = s->peer;
	size_t held = to->rx.n + to->coming;
	return held < to->limit ? to->limit - held : 0;
}

unsigned sock_ready(const struct sock *s)
{
	unsigned r = 0;
	if (s->error != 0)
		r |= POLLERR;
	if (s->kind == SOCK_DGRAM)
		return r | POLLOUT | (cgn_list_empty(&s->packets) ? 0 : POLLIN);
	if (s->state == SOCK_LISTENS)
		return r | (cgn_list_empty(&s->accepts) ? 0 : POLLIN);
	if (s->state == SOCK_NEW || s->state == SOCK_OVER)
		return r | POLLOUT | POLLHUP | (s->state == SOCK_OVER ? POLLIN | POLLRDHUP : 0);
	if (s->state == SOCK_CONNECTS)
		return r;
	if (s->rx.n > 0 || !cgn_list_empty(&s->packets) || s->ended)
		r |= POLLIN;
	if (s->ended)
		r |= POLLRDHUP;
	if (s->ended && s->shut)
		r |= POLLHUP;
	if (s->shut || sock_room(s) > s->peer->limit / 3)
		r |= POLLOUT;
	return r;
}

/* ---- segments on their way ---- */

struct segment {
	struct cgn_link link;
	uint64_t at, sent;
	bool fin, reset;
	struct object *passed; /* A descriptor in the message, or NULL */
	size_t n;
	char bytes[];
};

static void sock_over(struct sock *s, int error)
{
	if (s->state == SOCK_OVER)
		return;
	s->state = SOCK_OVER;
	s->error = error;
	s->ended = true;
	sock_changed(s);
}

static uint64_t delay_between(const struct world_host *a, const struct world_host *b)
{
	if (a == b)
		return 5 * WORLD_US + world_draw(30 * WORLD_US);
	if (world_chance(200))
		return WORLD_MS + world_draw(50 * WORLD_MS); /* A packet was lost, or a queue was long */
	return 50 * WORLD_US + world_draw(400 * WORLD_US);
}

static void on_transit(void *arg, uint64_t tag);

static void transit_arm(struct sock *s)
{
	struct cgn_link *l = cgn_list_first(&s->transit);
	if (l != NULL)
		event_at(CGN_CONTAINER(l, struct segment, link)->at, on_transit, s, ++s->armed);
}

static void segment_put(struct sock *to, const char *p, size_t n, bool fin, bool reset, struct object *passed)
{
	struct segment *g = __real_malloc(sizeof *g + n);
	if (g == NULL)
		world_fail("no memory for a segment");
	*g = (struct segment){.fin = fin, .reset = reset, .n = n, .sent = world.now, .passed = passed};
	if (n > 0)
		memcpy(g->bytes, p, n);
	uint64_t at = world.now + delay_between(to->host, to->peer->host);
	g->at = at > to->last ? at : to->last + 1;
	to->last = g->at;
	to->coming += n;
	bool first = cgn_list_empty(&to->transit);
	cgn_list_push(&to->transit, &g->link);
	if (first)
		transit_arm(to);
}

static void segments_drop(struct sock *s)
{
	for (struct cgn_link *l; (l = cgn_list_first(&s->transit)) != NULL;) {
		struct segment *g = CGN_CONTAINER(l, struct segment, link);
		cgn_list_drop(l);
		object_unref(g->passed);
		free(g);
	}
	s->coming = 0;
}

static void connection_break(struct sock *s, int error)
{
	segments_drop(s);
	segments_drop(s->peer);
	sock_over(s, error);
	sock_over(s->peer, error);
}

static void packet_put(struct sock *s, const void *p, size_t n, const struct sockaddr_in *from,
	struct object *passed)
{
	struct packet *k = __real_malloc(sizeof *k + n);
	if (k == NULL)
		world_fail("no memory for a packet");
	*k = (struct packet){.n = n, .passed = passed};
	if (from != NULL)
		k->from = *from;
	memcpy(k->bytes, p, n);
	cgn_list_push(&s->packets, &k->link);
}

static void segment_arrive(struct sock *s, struct segment *g)
{
	s->coming -= g->n;
	world_note("arrive", s->id, g->n);
	if (s->closed && !g->reset) {
		if (g->n > 0) /* The kernel answers data without a receiver with a reset */
			segment_put(s->peer, NULL, 0, false, true, NULL);
	} else if (g->reset) {
		sock_over(s, s->state == SOCK_CONNECTS ? ECONNREFUSED : ECONNRESET);
	} else if (s->state != SOCK_OVER) {
		if (s->kind == SOCK_SEQPACKET && g->n > 0)
			packet_put(s, g->bytes, g->n, NULL, g->passed);
		else
			cgn_buf_add(&s->rx, g->bytes, g->n);
		g->passed = s->kind == SOCK_SEQPACKET ? NULL : g->passed;
		s->ended |= g->fin;
		sock_changed(s);
	}
	object_unref(g->passed);
	free(g);
}

static void on_transit(void *arg, uint64_t tag)
{
	struct sock *s = arg;
	struct cgn_link *l;
	if (tag != s->armed)
		return;
	while ((l = cgn_list_first(&s->transit)) != NULL) {
		struct segment *g = CGN_CONTAINER(l, struct segment, link);
		if (g->at > world.now)
			break;
		if (s->host->cut[s->peer->host->number]) {
			if (world.now - g->sent > GIVE_UP) {
				connection_break(s, ETIMEDOUT);
				return;
			}
			g->at = world.now + RETRY_FIRST + (world.now - g->sent);
			break;
		}
		cgn_list_drop(l);
		segment_arrive(s, g);
	}
	transit_arm(s);
}

void (*world_tap)(uint32_t to_ip, uint16_t to_port, const char *p, size_t n);

/* Cut |n| bytes into segments by the seed. */
static void bytes_send(struct sock *s, const char *p, size_t n)
{
	if (world_tap != NULL && s->family != AF_UNIX)
		world_tap(s->peer_ip, s->peer_port, p, n);
	while (n > 0) {
		size_t part = n;
		if (n > 1 && world_chance(8))
			part = 1 + world_draw(n - 1);
		segment_put(s->peer, p, part, false, false, NULL);
		p += part;
		n -= part;
	}
}

/* ---- life ---- */

struct sock *sock_new(struct world_host *h, int family, int kind)
{
	static unsigned ids;
	struct sock *s = CGN_NEW(struct sock);
	*s = (struct sock){.host = h, .family = family, .kind = kind, .id = ++ids, .limit = SOCK_ROOM};
	if (kind == SOCK_STREAM && world_chance(8))
		s->limit = 2048 + world_draw(16384);
	cgn_list_init(&s->watches);
	cgn_list_init(&s->transit);
	cgn_list_init(&s->accepts);
	cgn_list_init(&s->packets);
	cgn_list_init(&s->bound);
	cgn_list_init(&s->pending);
	return s;
}

static void packets_drop(struct sock *s)
{
	for (struct cgn_link *l; (l = cgn_list_first(&s->packets)) != NULL;) {
		struct packet *k = CGN_CONTAINER(l, struct packet, link);
		cgn_list_drop(l);
		object_unref(k->passed);
		free(k);
	}
}

/* The records of sockets stay until the world ends: segments on their way name them. */
void sock_free(struct sock *s)
{
	s->closed = true;
	cgn_list_drop(&s->bound);
	if (s->state == SOCK_LISTENS)
		for (struct cgn_link *l; (l = cgn_list_first(&s->accepts)) != NULL;) {
			struct sock *c = CGN_CONTAINER(l, struct sock, pending);
			cgn_list_drop(l);
			sock_free(c);
		}
	if (s->peer != NULL && s->state == SOCK_CONNECTED) {
		bool reset = s->lingers_not || s->rx.n > 0;
		if (reset || !s->shut)
			segment_put(s->peer, NULL, 0, !reset, reset, NULL);
	}
	s->state = SOCK_OVER;
	packets_drop(s);
	cgn_buf_fini(&s->rx);
	while (!cgn_list_empty(&s->watches))
		cgn_list_drop(cgn_list_first(&s->watches));
}

/* ---- addresses ---- */

struct place {
	uint32_t ip; /* Host byte order; 0: any */
	uint16_t port;
};

static bool place_of(const struct sockaddr *sa, struct place *out)
{
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *a = (const void *)sa;
		*out = (struct place){ntohl(a->sin_addr.s_addr), ntohs(a->sin_port)};
		return true;
	}
	if (sa->sa_family != AF_INET6)
		return false;
	const struct sockaddr_in6 *a = (const void *)sa;
	*out = (struct place){0, ntohs(a->sin6_port)};
	if (IN6_IS_ADDR_LOOPBACK(&a->sin6_addr))
		out->ip = LOOPBACK;
	else if (IN6_IS_ADDR_V4MAPPED(&a->sin6_addr))
		out->ip = ntohl(*(const uint32_t *)(const void *)&a->sin6_addr.s6_addr[12]);
	return true;
}

static void place_put(const struct sock *s, uint32_t ip, uint16_t port, struct sockaddr *out, socklen_t *len)
{
	struct sockaddr_storage all = {.ss_family = (sa_family_t)s->family};
	socklen_t n = sizeof(sa_family_t);
	if (s->family == AF_INET) {
		struct sockaddr_in *a = (void *)&all;
		a->sin_addr.s_addr = htonl(ip);
		a->sin_port = htons(port);
		n = sizeof *a;
	} else if (s->family == AF_INET6) {
		struct sockaddr_in6 *a = (void *)&all;
		a->sin6_port = htons(port);
		if (ip == LOOPBACK)
			a->sin6_addr = in6addr_loopback;
		else if (ip != 0) {
			a->sin6_addr.s6_addr[10] = a->sin6_addr.s6_addr[11] = 0xff;
			uint32_t net = htonl(ip);
			memcpy(&a->sin6_addr.s6_addr[12], &net, 4);
		}
		n = sizeof *a;
	}
	if (out != NULL && len != NULL) {
		memcpy(out, &all, *len < n ? *len : n);
		*len = n;
	}
}

/* Return a socket that is bound there, one of several by the seed; NULL: there is none. */
static struct sock *bound_find(struct world_host *h, struct place at, int kind, bool listens)
{
	struct sock *found = NULL;
	size_t n = 0;
	cgn_list_each (l, &h->socks) {
		struct sock *s = CGN_CONTAINER(l, struct sock, bound);
		bool here = s->family != AF_UNIX && s->kind == kind && s->port == at.port &&
			(s->ip == 0 || s->ip == at.ip);
		if (here && (!listens || s->state == SOCK_LISTENS) && world_chance(++n))
			found = s;
	}
	return found;
}

static struct sock *path_find(struct world_host *h, const char *path)
{
	cgn_list_each (l, &h->socks) {
		struct sock *s = CGN_CONTAINER(l, struct sock, bound);
		if (s->family == AF_UNIX && strcmp(s->path, path) == 0)
			return s;
	}
	return NULL;
}

static struct world_host *host_of(struct world_host *from, uint32_t ip)
{
	if (ip >> 24 == 127 || ip == from->ip)
		return from;
	cgn_list_each (l, &world.hosts) {
		struct world_host *h = CGN_CONTAINER(l, struct world_host, link);
		if (h->ip == ip)
			return h;
	}
	return NULL;
}

static uint16_t port_new(struct world_host *h)
{
	if (h->next_port >= 60999)
		h->next_port = 32768;
	return h->next_port++;
}

int sock_bind(struct sock *s, const struct sockaddr *sa)
{
	struct place at;
	if (sa->sa_family == AF_UNIX) {
		const struct sockaddr_un *a = (const void *)sa;
		if (path_find(s->host, a->sun_path) != NULL)
			return EADDRINUSE;
		(void)cgn_str_copyz(s->path, sizeof s->path, cgn_str_of(a->sun_path));
		s->inode = file_socket(s->host, s->path);
		if (s->inode == 0)
			return EADDRINUSE;
		cgn_list_push(&s->host->socks, &s->bound);
		return 0;
	}
	if (!place_of(sa, &at))
		return EAFNOSUPPORT;
	if (at.ip != 0 && at.ip >> 24 != 127 && at.ip != s->host->ip)
		return EADDRNOTAVAIL;
	struct sock *other = at.port != 0 ? bound_find(s->host, at, s->kind, false) : NULL;
	if (other != NULL && !(other->shares && s->shares))
		return EADDRINUSE;
	s->ip = at.ip;
	s->port = at.port != 0 ? at.port : port_new(s->host);
	cgn_list_push(&s->host->socks, &s->bound);
	return 0;
}

/* ---- connecting ---- */

static void on_syn(void *arg, uint64_t tag)
{
	struct sock *s = arg, *listener = NULL;
	if (s->closed || s->state != SOCK_CONNECTS)
		return;
	struct world_host *h = s->family == AF_UNIX ? s->host : host_of(s->host, s->peer_ip);
	if (h == NULL || h->cut[s->host->number]) { /* Sent again, as long as the connection waits */
		if (tag < 8)
			event_at(world.now + (WORLD_SEC << tag), on_syn, s, tag + 1);
		else
			sock_over(s, ETIMEDOUT);
		return;
	}
	if (s->family == AF_UNIX)
		listener = path_find(h, s->path);
	else
		listener = bound_find(h, (struct place){s->peer_ip, s->peer_port}, SOCK_STREAM, true);
	if (listener == NULL || listener->state != SOCK_LISTENS || listener->closed) {
		sock_over(s, ECONNREFUSED);
		return;
	}
	struct sock *c = sock_new(h, s->family, s->kind);
	c->ip = s->peer_ip;
	c->port = s->peer_port;
	c->peer_ip = s->ip;
	c->peer_port = s->port;
	c->peer = s;
	s->peer = c;
	c->state = s->state = SOCK_CONNECTED;
	world_note("accept", c->id, s->id);
	cgn_list_push(&listener->accepts, &c->pending);
	sock_changed(listener);
	sock_changed(s);
}

/* Begin to connect. Return 0, EINPROGRESS or another errno. */
int sock_connect(struct sock *s, const struct sockaddr *sa)
{
	struct place at;
	if (s->state != SOCK_NEW)
		return s->state == SOCK_CONNECTS ? EALREADY : EISCONN;
	if (sa->sa_family == AF_UNIX) {
		const struct sockaddr_un *a = (const void *)sa;
		struct sock *listener = path_find(s->host, a->sun_path);
		if (listener == NULL || listener->state != SOCK_LISTENS)
			return file_exists(s->host, a->sun_path) ? ECONNREFUSED : ENOENT;
		(void)cgn_str_copyz(s->path, sizeof s->path, cgn_str_of(a->sun_path));
		s->state = SOCK_CONNECTS;
		on_syn(s, 0); /* A Unix socket connects at once */
		return s->state == SOCK_CONNECTED ? 0 : ECONNREFUSED;
	}
	if (!place_of(sa, &at))
		return EAFNOSUPPORT;
	s->peer_ip = at.ip;
	s->peer_port = at.port;
	if (s->port == 0)
		s->port = port_new(s->host);
	if (s->ip == 0)
		s->ip = at.ip >> 24 == 127 ? LOOPBACK : s->host->ip;
	if (s->kind == SOCK_DGRAM)
		return 0;
	s->state = SOCK_CONNECTS;
	struct world_host *h = host_of(s->host, at.ip);
	event_at(world.now + delay_between(s->host, h != NULL ? h : s->host), on_syn, s, 0);
	return EINPROGRESS;
}

struct sock *sock_accept(struct sock *s)
{
	struct cgn_link *l = cgn_list_first(&s->accepts);
	if (l == NULL)
		return NULL;
	cgn_list_drop(l);
	return CGN_CONTAINER(l, struct sock, pending);
}

void sock_pair(struct world_host *h, int kind, struct sock *out[2])
{
	for (int i = 0; i < 2; i++) {
		out[i] = sock_new(h, AF_UNIX, kind);
		out[i]->state = SOCK_CONNECTED;
	}
	out[0]->peer = out[1];
	out[1]->peer = out[0];
}

void sock_address(const struct sock *s, bool peer, struct sockaddr *out, socklen_t *len)
{
	place_put(s, peer ? s->peer_ip : s->ip, peer ? s->peer_port : s->port, out, len);
}

int sock_shutdown(struct sock *s)
{
	if (s->state != SOCK_CONNECTED)
		return ENOTCONN;
	if (!s->shut)
		segment_put(s->peer, NULL, 0, true, false, NULL);
	s->shut = true;
	return 0;
}

/* ---- bytes ---- */

static int send_error(struct sock *s)
{
	int e = s->error;
	s->error = 0;
	if (e != 0)
		return e;
	return s->state == SOCK_CONNECTED && !s->shut               ? 0
		: s->state == SOCK_NEW || s->state == SOCK_CONNECTS ? ENOTCONN
								    : EPIPE;
}

ssize_t sock_send(struct sock *s, const struct msghdr *m)
{
	work_add(0);
	size_t sent = 0, room;
	int e = send_error(s);
	if (e != 0) {
		errno = e;
		return -1;
	}
	room = sock_room(s);
	if (world_chance(64) && room > 1)
		room = 1 + world_draw(room < 4096 ? room : 4096); /* A short write */
	for (size_t i = 0; i < m->msg_iovlen && sent < room; i++) {
		size_t n = m->msg_iov[i].iov_len < room - sent ? m->msg_iov[i].iov_len : room - sent;
		bytes_send(s, m->msg_iov[i].iov_base, n);
		sent += n;
	}
	if (sent == 0 && room == 0) {
		errno = EAGAIN;
		return -1;
	}
	return (ssize_t)sent;
}

ssize_t sock_send_packet(struct sock *s, const struct msghdr *m, struct object *passed)
{
	char bytes[65536];
	size_t n = 0;
	int e = send_error(s);
	for (size_t i = 0; e == 0 && i < m->msg_iovlen; i++) {
		if (m->msg_iov[i].iov_len > sizeof bytes - n) {
			e = EMSGSIZE;
			break;
		}
		memcpy(bytes + n, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
		n += m->msg_iov[i].iov_len;
	}
	if (e == 0 && sock_room(s) < n)
		e = EAGAIN;
	if (e != 0) {
		object_unref(passed);
		errno = e;
		return -1;
	}
	segment_put(s->peer, bytes, n, false, false, passed);
	return (ssize_t)n;
}

ssize_t sock_recv(struct sock *s, void *p, size_t n, bool peek)
{
	if (s->rx.n > 0) {
		bool was_full = s->peer != NULL && sock_room(s->peer) <= s->limit / 3;
		size_t take = n < s->rx.n ? n : s->rx.n;
		if (take > 1 && world_chance(32))
			take = 1 + world_draw(take); /* A read may get a part of what has arrived */
		take = take < s->rx.n ? take : s->rx.n;
		take = take < n ? take : n;
		memcpy(p, s->rx.p, take);
		work_add(take);
		if (!peek)
			cgn_buf_eat(&s->rx, take);
		if (was_full && !peek && s->peer != NULL && !s->peer->closed)
			sock_changed(s->peer);
		return (ssize_t)take;
	}
	int e = s->error;
	s->error = 0;
	if (e == 0 && s->ended)
		return 0;
	errno = e != 0 ? e : s->state == SOCK_NEW ? ENOTCONN : EAGAIN;
	return -1;
}

/* ---- datagrams ---- */

struct flight {
	struct sock *from;
	struct place to;
	struct world_host *host;
	struct sockaddr_in source;
	size_t n;
	char bytes[];
};

static void on_flight(void *arg, uint64_t tag)
{
	struct flight *f = arg;
	(void)tag;
	struct sock *s =
		f->host->cut[f->from->host->number] ? NULL : bound_find(f->host, f->to, SOCK_DGRAM, false);
	if (s != NULL && !s->closed) {
		world_note("datagram", s->id, f->n);
		packet_put(s, f->bytes, f->n, &f->source, NULL);
		sock_changed(s);
	}
	free(f);
}

ssize_t sock_send_datagram(struct sock *s, const struct msghdr *m)
{
	struct place to = {s->peer_ip, s->peer_port};
	size_t n = 0;
	if (m->msg_name != NULL && !place_of(m->msg_name, &to)) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	for (size_t i = 0; i < m->msg_iovlen; i++)
		n += m->msg_iov[i].iov_len;
	if (n > 65507) {
		errno = EMSGSIZE;
		return -1;
	}
	struct world_host *h = host_of(s->host, to.ip);
	for (int copy = h == NULL || world_chance(500) ? 0 : world_chance(500) ? 2 : 1; copy > 0; copy--) {
		struct flight *f = __real_malloc(sizeof *f + n);
		if (f == NULL)
			world_fail("no memory for a datagram");
		*f = (struct flight){.from = s, .to = to, .host = h, .n = n};
		f->source = (struct sockaddr_in){.sin_family = AF_INET,
			.sin_port = htons(s->port),
			.sin_addr.s_addr = htonl(to.ip >> 24 == 127 ? LOOPBACK : s->host->ip)};
		for (size_t i = 0, at = 0; i < m->msg_iovlen; at += m->msg_iov[i++].iov_len)
			memcpy(f->bytes + at, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
		event_at(world.now + delay_between(s->host, h), on_flight, f, 0);
	}
	return (ssize_t)n;
}

struct packet *sock_packet(struct sock *s)
{
	struct cgn_link *l = cgn_list_first(&s->packets);
	return l != NULL ? CGN_CONTAINER(l, struct packet, link) : NULL;
}

void packet_free(struct packet *k)
{
	cgn_list_drop(&k->link);
	object_unref(k->passed);
	free(k);
}
