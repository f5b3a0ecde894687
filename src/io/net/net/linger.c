/* SPDX-License-Identifier: Apache-2.0 */
/* linger: read on after our FIN until the peer's FIN, for at most LINGER_TIME and LINGER_BYTES. close(2) with
 * unread bytes resets the connection, and a reset may overtake our last bytes in the peer's kernel. */
#include <errno.h>
#include <stdlib.h>

#include <uv.h>

#include "net_priv.h"

#define LINGER_TIME  (2 * CGN_SEC)
#define LINGER_BYTES ((size_t)1024 * 1024)

struct lingerer {
	struct net_wire *wire;
	struct cgn_loop *loop;
	struct cgn_timer timer;
	struct cgn_hook exit;
	size_t read;
};

static void linger_finish(struct lingerer *g)
{
	cgn_timer_cancel(&g->timer);
	cgn_hook_drop(&g->exit);
	net_wire_close(&g->wire, false);
	free(g);
}

static void on_linger(void *arg, int status, int events)
{
	struct lingerer *g = arg;
	(void)events;
	ssize_t n = recv(net_wire_fd(g->wire), cgn_loop_scratch(g->loop), CGN_LOOP_SCRATCH, 0);
	bool again = n < 0 && (errno == EAGAIN || errno == EINTR);
	g->read += n > 0 ? (size_t)n : 0;
	if (status < 0 || n == 0 || (n < 0 && !again) || g->read > LINGER_BYTES)
		linger_finish(g);
}

static void on_linger_timeout(struct cgn_timer *t)
{
	linger_finish(CGN_CONTAINER(t, struct lingerer, timer));
}

static void on_linger_exit(struct cgn_hook *h)
{
	linger_finish(CGN_CONTAINER(h, struct lingerer, exit));
}

void net_linger(struct cgn_loop *l, struct net_wire **take)
{
	struct lingerer *g = CGN_NEW(struct lingerer);
	g->wire = *take;
	*take = NULL;
	g->loop = l;
	cgn_timer_init(&g->timer, l, on_linger_timeout);
	cgn_timer_set(&g->timer, LINGER_TIME);
	cgn_hook_init(&g->exit, on_linger_exit);
	cgn_loop_at_exit(l, &g->exit);
	net_wire_owner(g->wire, on_linger, g);
	net_wire_watch(g->wire, UV_READABLE);
}
