/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-sim: a simulated engine. Workers share only their configuration and the port. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "policy/text/tokenizer/tokenizer.h"
#include "sim/server/worker.h"

#define DRAIN_TIMEOUT (5 * CGN_SEC)

static struct {
	struct sim_cfg cfg;
	struct sim_team team;
	struct cgn_timer drain_timer; /* Runs on the first worker's loop. */
	/* Posts, one for each worker, for drain, idle and stop, which follow each other. */
	struct cgn_post *posts;
	struct cgn_post *idle_posts;
	unsigned idle;
	bool draining, stopping;
} sim;

static void worker_stop(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	sim_worker_stop(&sim.team.workers[p - sim.posts]);
}

static void stop_all(void)
{
	if (sim.stopping)
		return;
	sim.stopping = true;
	cgn_timer_cancel(&sim.drain_timer);
	for (unsigned i = sim.team.n; i-- > 0;)
		cgn_loop_post(sim.team.workers[i].loop, &sim.posts[i], worker_stop);
}

static void drain_timed_out(struct cgn_timer *t)
{
	(void)t;
	stop_all();
}

/* Runs on the first worker's loop. */
static void one_is_idle(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	(void)p;
	if (++sim.idle == sim.team.n)
		stop_all();
}

static void server_is_idle(void *arg)
{
	struct sim_worker *w = arg;
	cgn_loop_post(sim.team.workers[0].loop, &sim.idle_posts[w->rank], one_is_idle);
}

static void worker_drain(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct sim_worker *w = &sim.team.workers[p - sim.posts];
	http_server_drain(w->server, server_is_idle, w);
}

/* The first signal finishes open requests, the second one stops at once. */
static void on_signal(void *arg, int signo)
{
	(void)arg;
	if (sim.draining)
		_exit(128 + signo);
	sim.draining = true;
	cgn_log(INFO, "sim.drain", F_STR("signal", signo == SIGTERM ? "SIGTERM" : "SIGINT"));
	cgn_timer_set(&sim.drain_timer, DRAIN_TIMEOUT);
	for (unsigned i = 0; i < sim.team.n; i++)
		cgn_loop_post(sim.team.workers[i].loop, &sim.posts[i], worker_drain);
}

static void make_team(void)
{
	struct sim_team *t = &sim.team;
	t->cfg = &sim.cfg;
	t->loras = sim.cfg.lora ? &sim.cfg : NULL;
	t->n = sim.cfg.workers;
	t->workers = CGN_NEW_ARRAY(struct sim_worker, t->n);
	t->models = CGN_NEW_ARRAY(struct cgn_str, SIM_MODELS_MAX);
	sim.posts = CGN_NEW_ARRAY(struct cgn_post, t->n);
	sim.idle_posts = CGN_NEW_ARRAY(struct cgn_post, t->n);
	for (unsigned i = 0; i < sim.cfg.n_models; i++) {
		struct cgn_buf name = {0}; /* Owned by the team as long as the process lives. */
		sim_put_string(&name, cgn_str_of(sim.cfg.models[i]));
		t->models[i] = cgn_buf_view(&name);
	}
	t->started = cgn_clock_now();
}

/* Read the file |path|, which failures name. */
static CGN_RC read_file(const char *path, struct cgn_buf *out, struct cgn_err *err)
{
	return path[0] == '\0' ? CGN_OK : disk_read_file(path, TOKENIZER_MAX_FILE, out, err);
}

static CGN_RC load_vocab(struct sim_team *t, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf tokenizer = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf template = {0};
	struct cgn_err why = {0};
	if (sim.cfg.tokenizer[0] == '\0')
		return CGN_OK;
	CGN_TRY(read_file(sim.cfg.tokenizer, &tokenizer, err));
	CGN_TRY(read_file(sim.cfg.chat_template, &template, err));
	cgn_rc rc = sim_vocab_new(cgn_buf_view(&tokenizer), cgn_buf_view(&template), &t->vocab, &why);
	if (cgn_ok(rc))
		return CGN_OK;
	return CGN_FAIL_AS(err, why.code, "%s%s%s: %s", sim.cfg.tokenizer, template.n > 0 ? " with " : "",
		sim.cfg.chat_template, why.msg);
}

static CGN_RC books_open(struct sim_team *t, struct cgn_err *err)
{
	const char *path = sim.cfg.books;
	t->books = path[0] != '\0' ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
	if (t->books < 0 && path[0] != '\0')
		return CGN_FAIL(err, INVALID, "--books %s: %s", path, strerror(errno));
	return CGN_OK;
}

static CGN_RC start_workers(struct cgn_err *err)
{
	make_team();
	CGN_TRY(books_open(&sim.team, err));
	CGN_TRY(load_vocab(&sim.team, err));
	struct sim_team *t = &sim.team;
	for (unsigned i = 0; i < t->n; i++)
		CGN_TRY(sim_worker_start(&t->workers[i], t, i, err));
	cgn_timer_init(&sim.drain_timer, t->workers[0].loop, drain_timed_out);
	CGN_TRY(cgn_loop_signal(t->workers[0].loop, SIGTERM, on_signal, NULL, err));
	CGN_TRY(cgn_loop_signal(t->workers[0].loop, SIGINT, on_signal, NULL, err));
	for (unsigned i = 1; i < t->n; i++)
		CGN_TRY(cgn_loop_start_thread(t->workers[i].loop, "sim-worker", err));
	return CGN_OK;
}

static void free_workers(void)
{
	struct sim_team *t = &sim.team;
	for (unsigned i = 1; i < t->n; i++)
		cgn_loop_join(t->workers[i].loop);
	for (unsigned i = 0; i < t->n; i++)
		sim_worker_fini(&t->workers[i]);
	for (unsigned i = 0; i < sim.cfg.n_models; i++)
		free((char *)(uintptr_t)t->models[i].p);
	sim_vocab_free(&t->vocab);
	free(t->models);
	free(t->workers);
	free(sim.posts);
	free(sim.idle_posts);
}

static int print_usage_error(const struct cgn_err *err)
{
	(void)fprintf(stderr, "cgn-sim: %s\n", err->msg);
	return 2;
}

int main(int argc, char **argv)
{
	struct cgn_err err = {0};
	enum sim_flags_then then;
	if (!cgn_ok(sim_flags_parse(argc, argv, &sim.cfg, &then, &err)))
		return print_usage_error(&err);
	if (then == SIM_VERSION)
		return printf("cgn-sim %s\n", CGN_VERSION) < 0;
	if (then == SIM_HELP) {
		struct cgn_buf text = {0};
		sim_flags_help(&text);
		(void)fwrite(text.p, 1, text.n, stdout);
		cgn_buf_fini(&text);
		return 0;
	}
	if (!cgn_ok(net_addr_check(sim.cfg.listen, &err)))
		return print_usage_error(&err);
	if (sim_has_events(&sim.cfg) && !cgn_ok(sim_endpoint_check(sim.cfg.events.endpoint, &err)))
		return print_usage_error(&err);
	if (sim.cfg.events.replay[0] != '\0' && !cgn_ok(sim_endpoint_check(sim.cfg.events.replay, &err)))
		return print_usage_error(&err);
	(void)signal(SIGPIPE, SIG_IGN);
	log_setup("cgn-sim", LOG_INFO, LOG_HUMAN);
	if (!cgn_ok(start_workers(&err))) {
		(void)fprintf(stderr, "cgn-sim: %s\n", err.msg);
		return cgn_code_exit(err.code);
	}
	cgn_log(INFO, "sim.ready", F_STR("listen", sim.cfg.listen), F_U64("port", sim.team.port),
		F_STR("model", sim.cfg.models[0]), F_F64("time_scale", sim.cfg.time_scale),
		F_U64("workers", sim.cfg.workers), F_U64("kv_blocks", sim.cfg.kv_blocks));
	cgn_loop_run(sim.team.workers[0].loop);
	free_workers();
	return 0;
}
