/* SPDX-License-Identifier: Apache-2.0 */
/* wire: a non-blocking socket watched by uv_poll. uv_poll instead of uv_tcp means one code for TCP and Unix
 * sockets and no read buffer per connection, and EPOLLRDHUP and EPOLLERR are reported while the reader is
 * paused. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "net_priv.h"

struct net_wire {
	uv_poll_t poll;
	net_wire_fn *fn;
	void *arg;
	int fd, events;
};

static void on_poll(uv_poll_t *h, int status, int events)
{
	struct net_wire *w = h->data;
	w->fn(w->arg, status, events);
}

CGN_RC net_wire_open(struct cgn_loop *l, int fd, net_wire_fn *fn, void *arg, struct net_wire **out,
	struct cgn_err *err)
{
	struct net_wire *w = CGN_NEW(struct net_wire);
	int rc = uv_poll_init(cgn_loop_uv(l), &w->poll, fd);
	if (rc != 0) {
		free(w);
		close(fd);
		return CGN_FAIL(err, UNAVAILABLE, "cannot watch a socket: %s", uv_strerror(rc));
	}
	w->fn = fn;
	w->arg = arg;
	w->fd = fd;
	w->poll.data = w;
	*out = w;
	return CGN_OK;
}

void net_wire_owner(struct net_wire *w, net_wire_fn *fn, void *arg)
{
	w->fn = fn;
	w->arg = arg;
}

void net_wire_watch(struct net_wire *w, int events)
{
	if (w->events == events)
		return;
	w->events = events;
	int rc = events != 0 ? uv_poll_start(&w->poll, events, on_poll) : uv_poll_stop(&w->poll);
	CGN_MUST(rc == 0);
}

void net_wire_lost(struct net_wire *w)
{
	w->events = 0;
}

int net_wire_fd(const struct net_wire *w)
{
	return w->fd;
}

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

void net_wire_close(struct net_wire **take, bool reset)
{
	struct net_wire *w = CGN_TAKE(take);
	if (w == NULL)
		return;
	uv_close((uv_handle_t *)&w->poll,
		on_closed); /* Stops watching at once, so that the descriptor may be closed at once. */
	if (reset)
		(void)setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1},
			sizeof(struct linger));
	close(w->fd);
}
