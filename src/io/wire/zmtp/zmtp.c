/* SPDX-License-Identifier: Apache-2.0 */
/* zmtp: the socket: its endpoint, its peers, and reconnecting. */
#include "io/wire/zmtp/zmtp.h"

#include <stdlib.h>
#include <string.h>

#include "zmtp_priv.h"

#define DEFAULT_BYTES ((size_t)16 * 1024 * 1024)

static void socket_dial(struct zmtp *s);
static void dial_later(struct zmtp *s);

/* ---- endpoints ---- */

static CGN_RC address_of(const char *endpoint, bool bind, char *out, size_t cap, struct cgn_err *err)
{
	struct cgn_str e = cgn_str_of(endpoint);
	bool tcp = cgn_str_starts(e, "tcp://"), local = cgn_str_starts(e, "ipc://");
	if (!tcp && !local)
		return CGN_FAIL(err, INVALID, "endpoint \"%.200s\": write tcp://host:port or ipc:///path",
			endpoint);
	const char *rest = endpoint + strlen("tcp://");
	bool any = tcp && strncmp(rest, "*:", 2) == 0;
	if (any && !bind)
		return CGN_FAIL(err, INVALID, "endpoint \"%.200s\": a host is needed to connect to",
			endpoint);
	int n = snprintf(out, cap, "%s%s", local ? "unix:" : any ? "0.0.0.0" : "", any ? rest + 1 : rest);
	if (n < 0 || (size_t)n >= cap)
		return CGN_FAIL(err, INVALID, "endpoint \"%.200s\" is too long", endpoint);
	return net_addr_check(out, err);
}

CGN_RC zmtp_endpoint_check(const char *endpoint, struct cgn_err *err)
{
	char addr[300];
	return address_of(endpoint, true, addr, sizeof addr, err);
}

/* ---- reports of peers ---- */

static void link_tell(struct zmtp *s, uint64_t peer, enum zmtp_link what, const char *why)
{
	if (!s->closed && s->ops->on_link != NULL)
		s->ops->on_link(s, s->user, peer, what, why);
}

void zmtp_on_ready(struct zmtp_peer *p)
{
	p->ready_at = cgn_loop_now(p->s->loop);
	link_tell(p->s, p->id, ZMTP_CONNECTED, "");
}

void zmtp_on_message(struct zmtp_peer *p)
{
	struct zmtp *s = p->s;
	struct cgn_str first = p->in.parts[0];
	if (s->kind == ZMTP_SUB && s->topic_n > 0 &&
		(first.n < s->topic_n || memcmp(first.p, s->topic, s->topic_n) != 0))
		return;
	s->stats.received++;
	if (s->ops->on_message != NULL)
		s->ops->on_message(s, s->user, p->id, p->in.parts, p->in.n_parts);
}

void zmtp_on_gone(struct zmtp_peer *p, const char *why)
{
	struct zmtp *s = p->s;
	/* The connection lasted. A peer that greets and leaves at once must not reset the backoff. */
	if (p->ready && cgn_since(cgn_loop_now(s->loop), p->ready_at) >= s->backoff.last)
		cgn_backoff_reset(&s->backoff);
	if (s->listener == NULL)
		dial_later(s);
	if (p->ready)
		link_tell(s, p->id, ZMTP_DISCONNECTED, why);
	else if (s->listener == NULL)
		link_tell(s, p->id, ZMTP_RETRYING, why);
}

/* ---- connecting ---- */

static void on_redial(struct cgn_timer *t)
{
	struct zmtp *s = CGN_CONTAINER(t, struct zmtp, redial);
	CGN_LIVE(s, ZMTP_TAG);
	socket_dial(s);
}

static void dial_later(struct zmtp *s)
{
	cgn_timer_set(&s->redial, cgn_backoff_next(&s->backoff));
}

static void socket_dial(struct zmtp *s)
{
	const struct net_dial d = {.addr = s->addr};
	struct zmtp_peer *p = zmtp_peer_new(s, NULL);
	struct cgn_err err = {0};
	if (!cgn_ok(net_connect(s->loop, &d, &zmtp_peer_ops, p, &p->conn, &err))) {
		p->conn = NULL;
		zmtp_peer_end(p, false);
		dial_later(s);
	}
}

static void on_accept(void *user, struct net_conn *c)
{
	struct zmtp *s = user;
	CGN_LIVE(s, ZMTP_TAG);
	if (s->n_peers < ZMTP_MAX_PEERS)
		net_conn_take(c, &zmtp_peer_ops, zmtp_peer_new(s, c));
}

/* ---- life ---- */

static CGN_RC take_cfg(struct zmtp *s, const struct zmtp_cfg *cfg, struct cgn_err *err)
{
	if (cfg->topic.n > ZMTP_MAX_TOPIC)
		return CGN_FAIL(err, INVALID, "a topic of %zu bytes: at most %d", cfg->topic.n,
			ZMTP_MAX_TOPIC);
	if (cfg->bind && cfg->kind == ZMTP_DEALER)
		return CGN_FAIL(err, INVALID, "endpoint \"%.200s\": a DEALER connects", cfg->endpoint);
	s->kind = cfg->kind;
	s->max_message = cfg->max_message != 0 ? cfg->max_message : DEFAULT_BYTES;
	s->queue = cfg->queue != 0 ? cfg->queue : DEFAULT_BYTES;
	s->heartbeat = cfg->heartbeat != 0 ? cfg->heartbeat : 5 * CGN_SEC;
	s->topic_n = cfg->topic.n;
	if (cfg->topic.n > 0)
		memcpy(s->topic, cfg->topic.p, cfg->topic.n);
	return address_of(cfg->endpoint, cfg->bind, s->addr, sizeof s->addr, err);
}

CGN_RC zmtp_open(struct cgn_loop *l, const struct zmtp_cfg *cfg, const struct zmtp_ops *ops, void *user,
	struct zmtp **out, struct cgn_err *err)
{
	struct zmtp *s = CGN_NEW(struct zmtp);
	*s = (struct zmtp){.tag = ZMTP_TAG,
		.loop = l,
		.ops = ops,
		.user = user,
		.backoff = {100 * CGN_MSEC, 2 * CGN_SEC, 0}};
	cgn_list_init(&s->peers);
	cgn_timer_init(&s->redial, l, on_redial);
	cgn_rc rc = take_cfg(s, cfg, err);
	if (cgn_ok(rc) && cfg->bind) {
		const struct net_listen_cfg lc = {.addr = s->addr, .max_conns = ZMTP_MAX_PEERS};
		rc = net_listen(l, &lc, on_accept, s, &s->listener, err);
	}
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	if (!cfg->bind)
		socket_dial(s);
	*out = s;
	return CGN_OK;
}

static void socket_released(struct cgn_grave *g)
{
	struct zmtp *s = CGN_CONTAINER(g, struct zmtp, grave);
	s->tag = 0;
	free(s);
}

void zmtp_close(struct zmtp **take)
{
	struct zmtp *s = CGN_TAKE_LIVE(take, ZMTP_TAG);
	if (s == NULL)
		return;
	s->closed = true;
	cgn_timer_cancel(&s->redial);
	if (s->listener != NULL)
		net_listener_close(&s->listener);
	cgn_list_each_safe (it, &s->peers)
		zmtp_peer_end(CGN_CONTAINER(it, struct zmtp_peer, link), true);
	cgn_loop_bury(s->loop, &s->grave, socket_released);
}

unsigned zmtp_port(const struct zmtp *s)
{
	CGN_LIVE(s, ZMTP_TAG);
	return s->listener != NULL ? net_listener_port(s->listener) : 0;
}

struct zmtp_stats zmtp_stats(const struct zmtp *s)
{
	CGN_LIVE(s, ZMTP_TAG);
	return s->stats;
}

/* ---- sending ---- */

static CGN_RC check_send(const struct zmtp *s, size_t n)
{
	CGN_LIVE(s, ZMTP_TAG);
	CGN_MUST(s->kind != ZMTP_SUB);
	return n == 0 || n > ZMTP_MAX_PARTS ? CGN_RC_OF(CGN_INVALID) : CGN_OK;
}

/* A write that fails does not end the peer before the end of the turn, so the list of peers does not change
 * during the loop. */
CGN_RC zmtp_send(struct zmtp *s, const struct cgn_str *parts, size_t n)
{
	bool reached = s->kind == ZMTP_PUB, dropped = false;
	CGN_TRY(check_send(s, n));
	cgn_list_each (it, &s->peers) {
		struct zmtp_peer *p = CGN_CONTAINER(it, struct zmtp_peer, link);
		if (!p->ready || (s->kind == ZMTP_PUB && !zmtp_peer_wants(p, parts[0])))
			continue;
		reached = true;
		dropped = !zmtp_peer_send(p, parts, n) || dropped;
	}
	return dropped ? CGN_RC_OF(CGN_OVERLOADED) : reached ? CGN_OK : CGN_RC_OF(CGN_UNAVAILABLE);
}

CGN_RC zmtp_send_to(struct zmtp *s, uint64_t peer, const struct cgn_str *parts, size_t n)
{
	CGN_TRY(check_send(s, n));
	cgn_list_each (it, &s->peers) {
		struct zmtp_peer *p = CGN_CONTAINER(it, struct zmtp_peer, link);
		if (p->ready && p->id == peer)
			return zmtp_peer_send(p, parts, n) ? CGN_OK : CGN_RC_OF(CGN_OVERLOADED);
	}
	return CGN_RC_OF(CGN_NOT_FOUND);
}
