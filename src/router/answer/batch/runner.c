/* SPDX-License-Identifier: Apache-2.0 */
/* runner: the life of the thread, and of each batch on it. */
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "router/answer/batch/runner_priv.h"
#include "router/metrics.h"
#include "router/request/admission/admission.h"
#include "router/shared/age/age.h"

#define RUNNER_TICK  (50 * CGN_MSEC)
#define SWEEP_EVERY  (60 * CGN_SEC)
#define WRITE_HOLD   (2 * CGN_SEC) /* After a write that failed. */
#define AGAIN_HOLD   CGN_SEC       /* Before lines that failed are asked again. */
#define WINDOW_LEAST 1.0

static uint64_t unix_now(void)
{
	return cgn_clock_wall_ms() / 1000;
}

/* ---- how many lines at once ---- */

/* A request waits for room, of a batch or of a client: more lines would only wait too. */
static bool room_is_scarce(const struct batch_runner *w)
{
	return atomic_load_explicit(&w->cfg.shared->admission->waiting, memory_order_relaxed) > 0;
}

/* Lines that failed wait again, after a pause. */
static void run_again(struct batch_run *run, cgn_nsec now)
{
	for (size_t i = 0; i < run->n; i++)
		if (run->lines[i].state == LINE_LATER)
			run->lines[i].state = LINE_WAITS;
	run->later = run->cursor = 0;
	if (run->hold_until < now + AGAIN_HOLD)
		run->hold_until = now + AGAIN_HOLD;
}

static size_t run_next(struct batch_run *run, cgn_nsec now)
{
	while (run->cursor < run->n && run->lines[run->cursor].state != LINE_WAITS)
		run->cursor++;
	if (run->cursor == run->n && run->later > 0 && run->asked == 0)
		run_again(run, now);
	return run->cursor;
}

static bool run_may_ask(struct batch_run *run, cgn_nsec now)
{
	return !run->busy && run->journal >= 0 && run->b.status == BATCH_IN_PROGRESS && !run->stopped &&
		run->hold_until <= now && run->disk_after <= now && run->b.waits == BATCH_GOES &&
		run_next(run, now) < run->n && run->hold_until <= now;
}

void batch_runner_fill(struct batch_runner *w)
{
	cgn_nsec now = cgn_loop_now(w->loop);
	if (atomic_load_explicit(&w->cfg.shared->draining, memory_order_relaxed))
		return;
	for (size_t passed = 0; passed < w->n_runs && (double)w->n_calls < w->window;) {
		struct cgn_link *first = w->runs.next;
		struct batch_run *run = CGN_CONTAINER(first, struct batch_run, link);
		cgn_list_drop(first);
		cgn_list_push(&w->runs, first); /* Batches take turns. */
		if (room_is_scarce(w))
			return;
		passed = run_may_ask(run, now) ? 0 : passed + 1;
		if (passed == 0)
			batch_ask(run, run->cursor);
	}
}

static void window_move(struct batch_runner *w)
{
	if (room_is_scarce(w))
		w->window = w->window / 2 > WINDOW_LEAST ? w->window / 2 : WINDOW_LEAST;
	else if (w->window < w->cfg.max_concurrent)
		w->window += (w->cfg.max_concurrent - w->window) / 20 + 0.05;
	if (w->window > w->cfg.max_concurrent)
		w->window = w->cfg.max_concurrent;
}

/* ---- the life of a batch ---- */

static void run_free(struct batch_run *run)
{
	struct batch_runner *w = run->owner;
	batch_ask_cancel(w, run);
	cgn_list_drop(&run->link);
	w->n_runs--;
	if (run->input >= 0)
		(void)close(run->input);
	if (run->journal >= 0)
		(void)close(run->journal);
	cgn_buf_fini(&run->fresh);
	free(run->lines);
	batch_fini(&run->b);
	free(run);
}

static enum batch_time time_of(enum batch_status s)
{
	static const enum batch_time times[BATCH_STATUSES] = {
		[BATCH_IN_PROGRESS] = BATCH_IN_PROGRESS_AT,
		[BATCH_FINALIZING] = BATCH_FINALIZING_AT,
		[BATCH_COMPLETED] = BATCH_COMPLETED_AT,
		[BATCH_FAILED] = BATCH_FAILED_AT,
		[BATCH_EXPIRED] = BATCH_EXPIRED_AT,
		[BATCH_CANCELLING] = BATCH_CANCELLING_AT,
		[BATCH_CANCELLED] = BATCH_CANCELLED_AT,
	};
	return times[s];
}

static void disk_hold(struct batch_run *run)
{
	run->disk_after = cgn_loop_now(run->owner->loop) + WRITE_HOLD;
}

/* False: the file of the batch could not be written, and the batch has its old state. */
static bool run_move(struct batch_run *run, enum batch_status to)
{
	struct cgn_err err;
	const struct batch before = run->b;
	run->b.status = to;
	run->b.times[time_of(to)] = unix_now();
	if (cgn_ok(batches_update(run->owner->cfg.shared->batches, &run->b, &err)))
		return true;
	run->b = before;
	disk_hold(run);
	return false;
}

/* The last step: the batch is over. */
static void run_over(struct batch_run *run, enum batch_status to)
{
	char path[PATH_MAX];
	/* Before clients see the end. A result that is written again after all needs no place. */
	filestore_give(run->owner->cfg.shared->files, run->b.output);
	filestore_give(run->owner->cfg.shared->files, run->b.error);
	if (!run_move(run, to))
		return;
	metric_add(METRIC_OF(run->owner->cfg.shared->telemetry, BATCHES, batch_status_text(to)), 1);
	cgn_log(INFO, "batch.over", F_STR("batch", run->b.id), F_STR("status", batch_status_text(to)),
		F_U64("completed", run->b.completed), F_U64("failed", run->b.failed),
		F_STR("why", run->b.n_faults > 0 ? run->b.faults[0].message : ""));
	batches_path(run->owner->cfg.shared->batches, run->b.id, ".journal", path);
	(void)unlink(path);
	run_free(run);
}

/* ---- jobs on the thread pool ---- */

static void runner_stop_try(struct batch_runner *w);

static void job_start(struct batch_run *run, void (*work)(void *run), void (*done)(void *run))
{
	struct batch_runner *w = run->owner;
	if (w->n_jobs >= BATCH_JOBS || w->stopping)
		return; /* The next tick tries it again. */
	run->busy = true;
	w->n_jobs++;
	cgn_loop_work(w->loop, work, done, run);
}

/* True: go on. */
static bool job_end(struct batch_run *run)
{
	struct batch_runner *w = run->owner;
	run->busy = false;
	w->n_jobs--;
	if (!w->stopping)
		return true;
	runner_stop_try(w); /* |run| may be gone. */
	return false;
}

static void result_work(void *arg)
{
	struct batch_run *run = arg;
	const char *code = NULL, *message = NULL;
	if (run->b.ending == BATCH_EXPIRED) {
		code = "batch_expired";
		message = "This request could not be executed before the completion window expired.";
	} else if (run->b.ending == BATCH_CANCELLED) {
		code = "batch_cancelled";
		message = "This request was not executed before the batch was cancelled.";
	} else if (run->b.ending == BATCH_FAILED) {
		code = "batch_failed";
		message = "This request was not executed before the batch was stopped.";
	}
	run->rc = batch_result_write(run, code, message, &run->err);
}

static void result_done(void *arg)
{
	struct batch_run *run = arg;
	if (!job_end(run))
		return;
	if (cgn_ok(run->rc)) {
		run_over(run, run->b.ending);
		return;
	}
	disk_hold(run);
	cgn_log_limited(ERROR, "batch.result_not_written", F_STR("batch", run->b.id),
		F_STR("why", run->err.msg),
		F_STR("then", "its answers are in its journal; it is tried again"));
}

static void run_finalize(struct batch_run *run)
{
	job_start(run, result_work, result_done);
}

/* End the batch with the answers in the journal. */
static void run_end(struct batch_run *run, enum batch_status ending)
{
	batch_ask_cancel(run->owner, run);
	run->b.ending = ending;
	if (run_move(run, BATCH_FINALIZING))
		run_finalize(run);
}

/* Write the answers that came. False: they cannot be written now. */
static bool run_flush(struct batch_run *run)
{
	struct cgn_err err;
	uint64_t completed = run->fresh_completed, failed = run->fresh_failed;
	if (!cgn_ok(batch_journal_flush(run, &err))) {
		disk_hold(run);
		cgn_log_limited(ERROR, "batch.journal_not_written", F_STR("batch", run->b.id),
			F_STR("why", err.msg), F_STR("then", "no further line is asked until it can be"));
		return false;
	}
	struct telemetry *t = run->owner->cfg.shared->telemetry;
	metric_add(METRIC_OF(t, BATCH_LINES, "completed"), completed);
	metric_add(METRIC_OF(t, BATCH_LINES, "failed"), failed);
	return true;
}

/* The journal is open, and the lines of a new batch were checked. */
static bool run_has_begun(const struct batch_run *run)
{
	return run->journal >= 0 && run->b.status != BATCH_VALIDATING;
}

/* Take the first steps of a batch, those that a full disk may delay. |run| may be gone afterwards. */
static void run_begin(struct batch_run *run)
{
	struct cgn_err err;
	if (run->stopped && run->b.status == BATCH_VALIDATING) {
		run_over(run, BATCH_FAILED);
		return;
	}
	if (run->journal < 0 && !cgn_ok(batch_journal_open(run, &err))) {
		disk_hold(run);
		cgn_log_limited(ERROR, "batch.no_journal", F_STR("batch", run->b.id), F_STR("why", err.msg),
			F_STR("then", "it is tried again"));
		return;
	}
	if (run->b.status == BATCH_VALIDATING)
		(void)run_move(run, BATCH_IN_PROGRESS);
}

static void input_work(void *arg)
{
	struct batch_run *run = arg;
	run->rc = batch_input_open(run, run->owner->cfg.max_lines, &run->err);
}

static void input_done(void *arg)
{
	struct batch_run *run = arg;
	if (!job_end(run))
		return;
	run->opened = cgn_ok(run->rc);
	run->stopped = run->opened && run->b.n_faults > 0;
	if (run->opened) {
		run_begin(run);
		return;
	}
	disk_hold(run);
	cgn_log_limited(ERROR, "batch.no_input", F_STR("batch", run->b.id), F_STR("why", run->err.msg),
		F_STR("then", "it is tried again"));
}

static void run_open_input(struct batch_run *run)
{
	job_start(run, input_work, input_done);
}

/* |run| may be gone afterwards. */
static void run_step(struct batch_run *run)
{
	struct batches *all = run->owner->cfg.shared->batches;
	if (run->busy || run->disk_after > cgn_loop_now(run->owner->loop))
		return; /* An end now would lose the answers that the journal does not have yet. */
	if (!run->opened) {
		run_open_input(run);
		return;
	}
	if (!run_has_begun(run)) {
		run_begin(run);
		return;
	}
	if (!run_flush(run))
		return;
	if (run->b.status == BATCH_FINALIZING)
		run_finalize(run);
	else if (batches_status(all, run->b.id) == BATCH_CANCELLING)
		run_end(run, BATCH_CANCELLED);
	else if (run->stopped)
		run_end(run, BATCH_FAILED);
	else if (gw_age_now(run->owner->cfg.shared->age) >= run->b.times[BATCH_EXPIRES_AT])
		run_end(run, BATCH_EXPIRED);
	else if (run->left == 0)
		run_end(run, BATCH_COMPLETED);
}

/* ---- batches that are new here ---- */

struct run_search {
	struct batch_runner *w;
	struct batch found[BATCH_RUNS];
	size_t n;
};

static bool run_is_known(const struct batch_runner *w, const char *id)
{
	cgn_list_each (it, &w->runs)
		if (strcmp(CGN_CONTAINER(it, struct batch_run, link)->b.id, id) == 0)
			return true;
	return false;
}

static void search_note(void *user, const struct batch *b)
{
	struct run_search *s = user;
	if (s->w->n_runs + s->n >= BATCH_RUNS || run_is_known(s->w, b->id))
		return;
	s->found[s->n] = *b;
	s->found[s->n].metadata = NULL;
	s->found[s->n].holder = b->by_token ? cgn_str_dupz(cgn_str_of(b->holder)) : NULL;
	s->n++;
}

static void run_open(struct batch_runner *w, struct batch *b)
{
	struct batch_run *run = CGN_NEW(struct batch_run);
	*run = (struct batch_run){.owner = w, .b = *b, .input = -1, .journal = -1};
	cgn_list_init(&run->link);
	cgn_list_push(&w->runs, &run->link);
	w->n_runs++;
	run_open_input(run);
}

static void runs_search(struct batch_runner *w)
{
	struct run_search *s = CGN_NEW(struct run_search);
	s->w = w;
	batches_each_open(w->cfg.shared->batches, search_note, s);
	for (size_t i = 0; i < s->n; i++)
		run_open(w, &s->found[i]);
	free(s);
}

/* ---- old files ---- */

static void sweep_work(void *arg)
{
	const struct batch_runner *w = arg;
	filestore_sweep(w->cfg.shared->files, gw_age_now(w->cfg.shared->age));
}

static void sweep_done(void *arg)
{
	struct batch_runner *w = arg;
	w->sweeping = false;
	w->n_jobs--;
	if (w->stopping)
		runner_stop_try(w);
}

static void sweep_start(struct batch_runner *w)
{
	if (w->sweeping)
		return;
	w->sweeping = true;
	w->n_jobs++;
	cgn_loop_work(w->loop, sweep_work, sweep_done, w);
}

/* ---- the thread ---- */

static void runner_tick(struct cgn_timer *t)
{
	struct batch_runner *w = CGN_CONTAINER(t, struct batch_runner, timer);
	CGN_LIVE(w, BATCH_RUNNER_TAG);
	struct telemetry *tel = w->cfg.shared->telemetry;
	runs_search(w);
	cgn_list_each_safe (it, &w->runs)
		run_step(CGN_CONTAINER(it, struct batch_run, link));
	batch_gates_look(w);
	window_move(w);
	batch_runner_fill(w);
	metric_set(METRIC_ONE(tel, BATCHES_OPEN), (double)w->n_runs);
	metric_set(METRIC_ONE(tel, BATCH_ASKED), (double)w->n_calls);
	if (cgn_since(cgn_loop_now(w->loop), w->swept_at) > SWEEP_EVERY) {
		w->swept_at = cgn_loop_now(w->loop);
		batches_sweep(w->cfg.shared->batches, gw_age_now(w->cfg.shared->age));
		sweep_start(w);
	}
	cgn_timer_set(&w->timer, RUNNER_TICK);
}

CGN_RC batch_runner_new(const struct batch_runner_cfg *cfg, struct batch_runner **out, struct cgn_err *err)
{
	struct batch_runner *w = CGN_NEW(struct batch_runner);
	w->tag = BATCH_RUNNER_TAG;
	w->cfg = *cfg;
	w->window = WINDOW_LEAST;
	cgn_list_init(&w->runs);
	cgn_list_init(&w->calls);
	const struct http_client_cfg http = {.addr = cfg->addr,
		.tls = cfg->tls,
		.server_name = cfg->server_name,
		.max_conns = cfg->max_concurrent};
	cgn_rc rc = cgn_loop_new(&w->loop, err);
	if (cgn_ok(rc))
		rc = http_client_new(w->loop, &http, &w->client, err);
	if (cgn_ok(rc)) {
		cgn_timer_init(&w->timer, w->loop, runner_tick);
		cgn_timer_set(&w->timer, RUNNER_TICK);
		rc = cgn_loop_start_thread(w->loop, "batch", err);
	}
	if (cgn_ok(rc)) {
		*out = w;
		return rc;
	}
	if (w->client != NULL)
		http_client_free(&w->client);
	if (w->loop != NULL)
		cgn_loop_free(&w->loop);
	free(w);
	return rc;
}

static void runner_stop_try(struct batch_runner *w)
{
	struct cgn_err err;
	if (w->n_jobs > 0)
		return;
	cgn_list_each_safe (it, &w->runs) {
		struct batch_run *run = CGN_CONTAINER(it, struct batch_run, link);
		(void)!cgn_ok(
			batch_journal_flush(run, &err)); /* Lines that are not written are asked again. */
		run_free(run);
	}
	http_client_free(&w->client);
	cgn_loop_stop(w->loop);
}

static void runner_on_stop(struct cgn_loop *l, struct cgn_post *p)
{
	struct batch_runner *w = CGN_CONTAINER(p, struct batch_runner, stop);
	(void)l;
	cgn_timer_cancel(&w->timer);
	batch_ask_cancel(w, NULL);
	w->stopping = true;
	runner_stop_try(w);
}

void batch_runner_free(struct batch_runner **take)
{
	struct batch_runner *w = CGN_TAKE_LIVE(take, BATCH_RUNNER_TAG);
	if (w == NULL)
		return;
	cgn_loop_post(w->loop, &w->stop, runner_on_stop);
	cgn_loop_join(w->loop);
	cgn_loop_free(&w->loop);
	w->tag = 0;
	free(w);
}
