/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/output.h"

#include "agent/engine/engine.h"
#include "base/core/utc.h"
#include "base/log/log.h"
#include "io/os/memlimit/memlimit.h"

#define OOM_EVERY (30 * CGN_SEC) /* Between two readings of the system's counter while the engine is well */

/* ---- the file ---- */

static void file_open(struct engine *e)
{
	struct engine_output *o = &e->process.output;
	char path[sizeof e->process.place + 8];
	struct cgn_err err = {0};
	if (o->file != NULL || o->file_size == 0 || e->process.place[0] == '\0')
		return;
	(void)snprintf(path, sizeof path, "%s.log", e->process.place);
	if (cgn_ok(linefile_open_bounded(path, o->file_size, o->files, &o->file, &err)))
		return;
	o->file_size = 0;
	cgn_log(WARN, "engine.log_unusable", F_STR("engine", e->name), F_STR("why", err.msg),
		F_STR("then", "the engine runs on without a log of its own"));
}

/* Add a line of the agent itself. */
static void file_remark(struct engine *e, const char *what)
{
	char line[400], when[40];
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000);
	file_open(e);
	if (e->process.output.file == NULL || !cgn_utc_text(now, "%Y-%m-%dT%H:%M:%SZ", when, sizeof when))
		return;
	int n = snprintf(line, sizeof line - 1, "--- cgn-agent %s: %s", when, what);
	if (n < 0)
		return;
	size_t len = (size_t)n < sizeof line - 2 ? (size_t)n : sizeof line - 2;
	line[len++] = '\n';
	linefile_add(e->process.output.file, (struct cgn_str){line, len});
}

static void file_line(struct engine *e, struct cgn_str line)
{
	char text[PROC_LINE_BYTES + 1];
	file_open(e);
	if (e->process.output.file == NULL || line.n > PROC_LINE_BYTES)
		return;
	memcpy(text, line.p, line.n);
	text[line.n] = '\n';
	linefile_add(e->process.output.file, (struct cgn_str){text, line.n + 1});
}

/* ---- lines ---- */

static void last_keep(struct engine_output *o, struct cgn_str line)
{
	char *to = o->line[o->n++ % ENGINE_LAST_LINES];
	if (line.n >= ENGINE_LAST_BYTES)
		line.n = cgn_utf8_prefix(line.p, ENGINE_LAST_BYTES - 1);
	(void)cgn_str_copyz(to, ENGINE_LAST_BYTES, line);
}

static void line_tell(const struct engine *e, bool is_stderr, struct cgn_str line, enum log_level level)
{
	const struct log_field fields[] = {F_STR("engine", e->name),
		F_STR("stream", is_stderr ? "stderr" : "stdout"), F_STRN("line", line)};
	log_event(level, "engine.output", fields, CGN_COUNT(fields));
}

void engine_output_line(struct engine *e, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	static struct log_limit errors;
	struct engine_output *o = &e->process.output;
	enum log_level level = (enum log_level)e->host->output_level;
	char left_out[60];
	if (dropped > 0) {
		cgn_log(WARN, "engine.output_dropped", F_STR("engine", e->name), F_U64("lines", dropped));
		(void)snprintf(left_out, sizeof left_out, "%lu lines came too fast and are left out",
			dropped);
		file_remark(e, left_out);
	}
	file_line(e, line);
	engine_words_line(&o->words, line);
	bool is_error = engine_line_level(line) == ENGINE_LINE_ERROR;
	if (is_error && level < LOG_WARN && log_wants(LOG_WARN) && log_limit_pass(&errors, "engine.output"))
		line_tell(e, is_stderr, line, LOG_WARN);
	else if (log_wants(level))
		line_tell(e, is_stderr, line, level);
	else
		last_keep(o, line);
}

void engine_output_tell(struct engine *e)
{
	struct engine_output *o = &e->process.output;
	unsigned from = o->n > ENGINE_LAST_LINES ? o->n - ENGINE_LAST_LINES : 0;
	for (unsigned i = from; i < o->n; i++)
		cgn_log(WARN, "engine.output", F_STR("engine", e->name),
			F_STR("line", o->line[i % ENGINE_LAST_LINES]));
	o->n = 0;
}

/* ---- begin and end ---- */

static void kills_note(struct engine *e)
{
	e->process.output.oom_kills = memlimit_oom_kills("");
	e->process.output.oom_at = cgn_loop_now(e->host->loop);
}

void engine_output_begin(struct engine *e, const char *what)
{
	engine_words_begin(&e->process.output.words);
	e->process.output.n = 0;
	kills_note(e);
	file_remark(e, what);
}

void engine_output_well(struct engine *e)
{
	if (cgn_since(cgn_loop_now(e->host->loop), e->process.output.oom_at) >= OOM_EVERY)
		kills_note(e);
}

void engine_output_end(struct engine *e, const struct proc_exit *why, char *out, size_t cap)
{
	struct engine_output *o = &e->process.output;
	char how[128], remark[160];
	(void)proc_exit_text(why, how, sizeof how);
	const struct engine_end end = {.how = how,
		.code = why->code,
		.signal = why->signal,
		.oom_kill = memlimit_oom_kills("") > o->oom_kills};
	engine_words_tell(&o->words, &end, out, cap);
	(void)snprintf(remark, sizeof remark, "the engine ended: %s", how);
	file_remark(e, remark);
}

void engine_output_init(struct engine *e, const struct config *cfg)
{
	e->process.output.file_size = cfg->agent.engine_log_size;
	e->process.output.files = cfg->agent.engine_log_files;
	engine_words_begin(&e->process.output.words);
}

void engine_output_close(struct engine *e)
{
	linefile_close(&e->process.output.file);
}
