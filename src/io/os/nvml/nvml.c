/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/nvml/nvml.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/core/str.h"
#include "io/os/loop/loop.h"
#include "io/os/nvml/nvml_priv.h"

#define NVML_TAG      0x4e564d4cU
#define RETRY_ROUNDS  10 /* Intervals between two attempts at a library that refuses */
#define CLOSE_WAIT_MS 1000

struct nvml {
	uint32_t tag;
	pthread_t thread;
	pthread_mutex_t lock; /* Guards |view|, |stop| and |refs| */
	pthread_cond_t wake;
	struct nvml_view view;
	bool stop;
	unsigned refs; /* The owner and the thread: the last one frees */
	/* The thread's */
	char *library, *gpus;
	cgn_nsec interval;
	struct nvml_lib lib;
	bool open; /* |lib| is open and was initialized */
	struct nvml_view next;
};

/* ---- the thread ---- */

static void call_mark(struct nvml *n, cgn_nsec since)
{
	(void)pthread_mutex_lock(&n->lock);
	n->view.call_since = since;
	(void)pthread_mutex_unlock(&n->lock);
}

static void failure_note(struct nvml *n, const char *what, int result)
{
	struct nvml_view *v = &n->next;
	v->state = NVML_FAILING;
	v->n = 0;
	(void)snprintf(v->why, sizeof v->why, "%s: %s", what, nvml_lib_error(&n->lib, result));
}

static void driver_read(struct nvml *n)
{
	struct nvml_view *v = &n->next;
	if (n->lib.driver == NULL || n->lib.driver(v->driver, sizeof v->driver) != NVML_LIB_SUCCESS)
		v->driver[0] = '\0';
	v->driver[sizeof v->driver - 1] = '\0';
}

/* False: it cannot be opened, or the driver refuses. */
static bool library_open(struct nvml *n)
{
	struct nvml_view *v = &n->next;
	struct cgn_err err = {0};
	if (n->open)
		return true;
	cgn_rc rc = nvml_lib_open(n->library, &n->lib, &err);
	if (!cgn_ok(rc)) {
		v->state = NVML_ABSENT;
		(void)cgn_str_copyz(v->why, sizeof v->why, cgn_str_of(err.msg));
		return false;
	}
	int result = n->lib.init();
	n->open = result == NVML_LIB_SUCCESS;
	if (n->open) {
		driver_read(n);
		return true;
	}
	failure_note(n, "nvmlInit", result);
	nvml_lib_close(&n->lib);
	return false;
}

static void library_drop(struct nvml *n)
{
	if (n->open)
		nvml_lib_close(&n->lib);
	n->open = false;
}

/* Read all GPUs of the list into |next|. */
static void gpus_read(struct nvml *n)
{
	struct nvml_view *v = &n->next;
	unsigned count = 0;
	int result = n->lib.count(&count), last = NVML_LIB_SUCCESS;
	v->n = 0;
	v->why[0] = '\0';
	if (result != NVML_LIB_SUCCESS) {
		failure_note(n, "nvmlDeviceGetCount", result);
		return;
	}
	v->state = NVML_READING;
	for (unsigned i = 0; i < count && v->n < NVML_MAX_GPUS; i++) {
		struct nvml_gpu *g = &v->gpu[v->n];
		if (!nvml_lib_read(&n->lib, i, g, &result)) {
			last = result;
			(void)snprintf(v->why, sizeof v->why, "GPU %u: %s", i,
				nvml_lib_error(&n->lib, result));
		} else if (nvml_lib_listed(n->gpus, i, g->uuid)) {
			v->n++;
		}
	}
	if (v->n == 0 && last != NVML_LIB_SUCCESS)
		v->state = NVML_FAILING;
}

static void view_publish(struct nvml *n)
{
	(void)pthread_mutex_lock(&n->lock);
	n->next.readings = n->view.readings + (n->next.state == NVML_READING ? 1 : 0);
	n->next.call_since = 0;
	n->view = n->next;
	(void)pthread_mutex_unlock(&n->lock);
}

/* Wait for |for_long|; false when the thread is to end. */
static bool pause_for(struct nvml *n, cgn_nsec for_long)
{
	struct timespec until;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	cgn_nsec at = (cgn_nsec)until.tv_sec * CGN_SEC + (cgn_nsec)until.tv_nsec + for_long;
	until.tv_sec = (time_t)(at / CGN_SEC);
	until.tv_nsec = (long)(at % CGN_SEC);
	(void)pthread_mutex_lock(&n->lock);
	while (!n->stop && pthread_cond_timedwait(&n->wake, &n->lock, &until) != ETIMEDOUT)
		;
	bool more = !n->stop;
	(void)pthread_mutex_unlock(&n->lock);
	return more;
}

/* Drop the caller's reference; the last one frees. */
static void nvml_release(struct nvml *n)
{
	(void)pthread_mutex_lock(&n->lock);
	bool last = --n->refs == 0;
	(void)pthread_cond_broadcast(&n->wake);
	(void)pthread_mutex_unlock(&n->lock);
	if (!last)
		return;
	(void)pthread_mutex_destroy(&n->lock);
	(void)pthread_cond_destroy(&n->wake);
	n->tag = 0;
	free(n->library);
	free(n->gpus);
	free(n);
}

static void *reader_run(void *arg)
{
	struct nvml *n = arg;
	bool more = true;
	while (more) {
		call_mark(n, cgn_clock_now());
		if (library_open(n))
			gpus_read(n);
		bool failing = n->next.state == NVML_FAILING;
		if (failing)
			library_drop(n);
		view_publish(n);
		if (n->next.state == NVML_ABSENT)
			break;
		more = pause_for(n, failing ? RETRY_ROUNDS * n->interval : n->interval);
	}
	call_mark(n, cgn_clock_now()); /* Ending the library may hang too. */
	library_drop(n);
	call_mark(n, 0);
	nvml_release(n);
	return NULL;
}

/* ---- open and close ---- */

static bool thread_start(struct nvml *n)
{
	pthread_attr_t attr;
	sigset_t all, before;
	if (pthread_attr_init(&attr) != 0)
		return false;
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before); /* Signals are for the loop's thread. */
	bool ok = pthread_create(&n->thread, &attr, reader_run, n) == 0;
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
	return ok;
}

CGN_RC nvml_open(const struct nvml_cfg *cfg, struct nvml **out, struct cgn_err *err)
{
	pthread_condattr_t monotonic;
	struct nvml *n = CGN_NEW(struct nvml);
	*n = (struct nvml){.tag = NVML_TAG,
		.refs = 1,
		.library = cgn_str_dupz(cgn_str_of(cfg->library)),
		.gpus = cgn_str_dup_maybe(cfg->gpus),
		.interval = cfg->interval};
	(void)pthread_mutex_init(&n->lock, NULL);
	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&n->wake, &monotonic);
	(void)pthread_condattr_destroy(&monotonic);
	n->refs = 2;
	if (thread_start(n)) {
		*out = n;
		return CGN_OK;
	}
	n->refs = 1;
	nvml_release(n);
	return CGN_FAIL(err, NO_MEMORY, "no thread to read GPUs");
}

void nvml_read(struct nvml *n, struct nvml_view *out)
{
	CGN_LIVE(n, NVML_TAG);
	(void)pthread_mutex_lock(&n->lock);
	*out = n->view;
	(void)pthread_mutex_unlock(&n->lock);
}

void nvml_close(struct nvml **take)
{
	struct nvml *n = *take;
	struct timespec until;
	*take = NULL;
	if (n == NULL)
		return;
	CGN_LIVE(n, NVML_TAG);
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += CLOSE_WAIT_MS / 1000;
	(void)pthread_mutex_lock(&n->lock);
	n->stop = true;
	(void)pthread_cond_broadcast(&n->wake);
	while (n->refs > 1 && pthread_cond_timedwait(&n->wake, &n->lock, &until) != ETIMEDOUT)
		;
	(void)pthread_mutex_unlock(&n->lock);
	nvml_release(n);
}
