/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: one loop each, with every port of ports.def on it. */
#include <stdlib.h>
#include <unistd.h>

#include "kvcached/daemon/kvcached.h"

#define IDLE_EVERY (20 * CGN_MSEC)

static const struct kvcached_port *const ports[KVCACHED_PORTS + 1] = {
#define PORT(name) &kvcached_port_##name,
#include "kvcached/daemon/ports.def"
#undef PORT
	NULL};

static size_t worker_count(const struct config *cfg)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	size_t n = cfg->kv.worker_threads > 0 ? cfg->kv.worker_threads : (size_t)(cores > 0 ? cores : 1);
	return n < KVCACHED_MAX_WORKERS ? n : KVCACHED_MAX_WORKERS;
}

/* ---- drain ---- */
static bool worker_is_idle(const struct kvcached_worker *w)
{
	for (size_t i = 0; ports[i] != NULL; i++)
		if (w->ports[i] != NULL && !ports[i]->idle(w->ports[i]))
			return false;
	return true;
}

static void worker_on_idle_timer(struct cgn_timer *t)
{
	struct kvcached_worker *w = CGN_CONTAINER(t, struct kvcached_worker, idle_timer);
	if (!worker_is_idle(w))
		cgn_timer_set(t, IDLE_EVERY);
	else if (atomic_fetch_sub(&w->daemon->busy, 1) == 1)
		svc_drained(w->daemon->svc);
}

static void worker_on_drain(struct cgn_loop *l, struct cgn_post *p)
{
	struct kvcached_worker *w = CGN_CONTAINER(p, struct kvcached_worker, drain_post);
	(void)l;
	for (size_t i = 0; ports[i] != NULL; i++)
		if (w->ports[i] != NULL)
			ports[i]->drain(w->ports[i]);
	cgn_timer_set(&w->idle_timer, 0);
}

void kvcached_workers_drain(struct kvcached *d)
{
	CGN_LIVE(d, KVCACHED_TAG);
	atomic_store(&d->busy, d->n_workers);
	for (size_t i = 0; i < d->n_workers; i++)
		cgn_loop_post(d->workers[i].loop, &d->workers[i].drain_post, worker_on_drain);
}

/* ---- reload ---- */
static void worker_on_reload(struct cgn_loop *l, struct cgn_post *p)
{
	struct kvcached_worker *w = CGN_CONTAINER(p, struct kvcached_worker, reload_post);
	(void)l;
	for (size_t i = 0; ports[i] != NULL; i++)
		if (w->ports[i] != NULL && ports[i]->reload != NULL)
			ports[i]->reload(w->ports[i]);
}

void kvcached_workers_reload(struct kvcached *d)
{
	for (size_t i = 0; i < d->n_workers; i++)
		cgn_loop_post(d->workers[i].loop, &d->workers[i].reload_post, worker_on_reload);
}

/* ---- open and close ---- */
static CGN_RC worker_open(struct kvcached *d, unsigned index, struct kvcached_worker *w, struct cgn_err *err)
{
	*w = (struct kvcached_worker){.daemon = d, .index = index};
	CGN_TRY(cgn_loop_new(&w->loop, err));
	cgn_loop_poll(w->loop, d->cfg->kv.poll_us * CGN_USEC);
	cgn_timer_init(&w->idle_timer, w->loop, worker_on_idle_timer);
	d->n_workers = index + 1;
	for (size_t i = 0; ports[i] != NULL; i++)
		CGN_TRY(ports[i]->open(w, &w->ports[i], err));
	return CGN_OK;
}

CGN_RC kvcached_workers_open(struct kvcached *d, struct cgn_err *err)
{
	size_t n = worker_count(d->cfg);
	d->workers = CGN_NEW_ARRAY(struct kvcached_worker, n);
	for (size_t i = 0; i < n; i++)
		CGN_TRY(worker_open(d, (unsigned)i, &d->workers[i], err));
	return CGN_OK;
}

CGN_RC kvcached_workers_start(struct kvcached *d, struct cgn_err *err)
{
	for (size_t i = 0; i < d->n_workers; i++) {
		struct kvcached_worker *w = &d->workers[i];
		char name[24];
		(void)snprintf(name, sizeof name, "worker-%u", w->index);
		CGN_TRY(cgn_loop_start_thread(w->loop, name, err));
		w->running = true;
	}
	return CGN_OK;
}

static void worker_on_stop(struct cgn_loop *l, struct cgn_post *p)
{
	struct kvcached_worker *w = CGN_CONTAINER(p, struct kvcached_worker, stop_post);
	cgn_timer_cancel(&w->idle_timer);
	for (size_t i = KVCACHED_PORTS; i > 0; i--)
		if (w->ports[i - 1] != NULL)
			ports[i - 1]->close(&w->ports[i - 1]);
	cgn_loop_stop(l);
}

void kvcached_workers_close(struct kvcached *d)
{
	for (size_t i = d->n_workers; i > 0; i--) { /* worker 0 last: the others ask its ports */
		struct kvcached_worker *w = &d->workers[i - 1];
		if (w->loop == NULL)
			continue;
		/* a loop that never ran runs the post when it is freed */
		cgn_loop_post(w->loop, &w->stop_post, worker_on_stop);
		if (w->running)
			cgn_loop_join(w->loop);
	}
	if (d->store != NULL)
		kvstore_reads_stop(d->store); /* cancelled reads are answered on the workers' loops too */
	/* no loop is freed before all have ended: loops post to each other */
	for (size_t i = 0; i < d->n_workers; i++)
		cgn_loop_free(&d->workers[i].loop);
	free(d->workers);
	d->workers = NULL;
	d->n_workers = 0;
}
