/* SPDX-License-Identifier: Apache-2.0 */
/* bench tokenizer: measures how fast tokenizer.json files tokenize a text on one thread, by CPU time. Where
 * Python has the package `tokenizers`, measures that too in the same run, after comparing the ids. Also
 * measures, in wall time, a router's work for a long prompt: new, repeated, and one turn longer
 * (bench/prompt.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/common/report.h"
#include "bench/part/prompt.h"
#include "bench/part/text.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "io/os/proc/proc.h"
#include "policy/text/tokenizer/tokenizer.h"

#define TEXT_LIMIT ((size_t)256 << 20)
/* Bytes of a part, about a prompt; the text is tokenized part by part, as requests arrive. */
#define PART ((size_t)16 << 10)

/* The script for the other library: argv is file, text, ids (written), lengths of the parts, rounds. Prints
 * its times, or that the library is missing. encode_batch_fast is its fastest call (no offsets); one thread,
 * as here. */
static const char script[] =
	"import sys,time\n"
	"try:\n"
	"    import tokenizers\n"
	"except ImportError:\n"
	"    print('ABSENT'); sys.exit()\n"
	"from array import array\n"
	"t0=time.perf_counter(); t=tokenizers.Tokenizer.from_file(sys.argv[1]); load=time.perf_counter()-t0\n"
	"raw=open(sys.argv[2],'rb').read(); parts=[]; at=0\n"
	"for n in array('I',open(sys.argv[4],'rb').read()):\n"
	"    parts.append(raw[at:at+n].decode('utf-8','replace')); at+=n\n"
	"run=getattr(t,'encode_batch_fast',t.encode_batch); best=1e9\n"
	"for _ in range(int(sys.argv[5])):\n"
	"    t0=time.process_time(); out=run(parts); best=min(best,time.process_time()-t0)\n"
	"ids=array('I')\n"
	"for e in out: ids.extend(e.ids)\n"
	"open(sys.argv[3],'wb').write(ids.tobytes())\n"
	"print('DONE',tokenizers.__version__,load,best)\n";

struct other { /* Result of Hugging Face's tokenizers. */
	bool there;
	char version[32];
	double load, best;
};

struct bench {
	struct cgn_loop *loop;
	struct cgn_buf text, parts; /* |parts|: lengths, uint32_t each. */
	char dir[64];
	uint64_t rounds, prompt_tokens;
	const char *python;
	char line[256]; /* Last line printed by Python. */
	struct proc_exit exit;
};

struct result {
	const char *file;
	double load, best;
	size_t tokens, memory;
	struct other other;
	struct bench_prompt prompt;
};

/* ---- the text ---- */

/* Cut the text into parts, at line ends if there are any nearby. */
static void cut_parts(struct bench *b)
{
	for (size_t at = 0; at < b->text.n;) {
		size_t n = b->text.n - at < PART ? b->text.n - at : PART;
		const char *line = n == PART ? memrchr(b->text.p + at, '\n', n) : NULL;
		uint32_t len = (uint32_t)(line != NULL ? (size_t)(line + 1 - (b->text.p + at)) : n);
		cgn_buf_add(&b->parts, &len, sizeof len);
		at += len;
	}
}

static CGN_RC read_text(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	uint64_t bytes;
	CGN_TRY(ctl_flag_u64(a, "--bytes", 1, TEXT_LIMIT, &bytes, err));
	if (ctl_flag(a, "--text") != NULL)
		CGN_TRY(disk_read_file(ctl_flag(a, "--text"), TEXT_LIMIT, &b->text, err));
	else
		bench_text(&b->text, bytes, 1);
	if (b->text.n == 0)
		return CGN_FAIL(err, INVALID, "the text is empty");
	cut_parts(b);
	return b->text.bad || b->parts.bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : CGN_OK;
}

/* ---- this tokenizer ---- */

static CGN_RC one_round(const struct bench *b, const struct tokenizer *t, struct tokenizer_work *w,
	struct tokenizer_ids *ids, struct cgn_err *err)
{
	const uint32_t *len = (const uint32_t *)(const void *)b->parts.p;
	ids->n = 0;
	for (size_t i = 0, at = 0; i < b->parts.n / sizeof *len; at += len[i++])
		CGN_TRY(tokenizer_encode(t, w, (struct cgn_str){b->text.p + at, len[i]}, TOKENIZER_SPECIALS,
			ids, err));
	return CGN_OK;
}

/* Run the rounds, each with an empty word cache. */
static CGN_RC run_rounds(const struct bench *b, const struct tokenizer *t, struct tokenizer_ids *ids,
	struct result *r, struct cgn_err *err)
{
	for (uint64_t i = 0; i < b->rounds; i++) {
		CGN_ON_EXIT(tokenizer_work_free) struct tokenizer_work *w = tokenizer_work_new(t);
		cgn_nsec from = report_cpu_now();
		CGN_TRY(one_round(b, t, w, ids, err));
		double took = (double)cgn_since(report_cpu_now(), from) / 1e9;
		r->best = i == 0 || took < r->best ? took : r->best;
	}
	r->tokens = ids->n;
	return CGN_OK;
}

static CGN_RC measure_ours(const struct bench *b, struct tokenizer_ids *ids, struct result *r,
	struct cgn_err *err)
{
	struct cgn_buf file = {0};
	CGN_ON_EXIT(tokenizer_free) struct tokenizer *t = NULL;
	cgn_nsec from = cgn_clock_now();
	cgn_rc rc = disk_read_file(r->file, TOKENIZER_MAX_FILE, &file, err);
	if (cgn_ok(rc))
		rc = tokenizer_load(cgn_buf_view(&file), &t, err);
	cgn_buf_fini(&file);
	CGN_TRY(rc);
	r->load = report_seconds_since(from);
	r->memory = tokenizer_bytes(t);
	CGN_TRY(bench_prompt(t, b->prompt_tokens, b->rounds, &r->prompt, err));
	return run_rounds(b, t, ids, r, err);
}

/* ---- Hugging Face's tokenizers ---- */

static void on_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct bench *b = user;
	(void)is_stderr;
	(void)dropped;
	(void)cgn_str_copyz(b->line, sizeof b->line, line);
}

static void on_exit_(void *user, const struct proc_exit *why)
{
	struct bench *b = user;
	b->exit = *why;
	cgn_loop_stop(b->loop);
}

static CGN_RC run_python(struct bench *b, const char *file, struct cgn_err *err)
{
	static const struct proc_ops ops = {.on_line = on_line, .on_exit = on_exit_};
	static const char *const env[] = {"TOKENIZERS_PARALLELISM=false", "RAYON_NUM_THREADS=1", NULL};
	char text[80], ids[80], parts[80], n[24];
	const char *const argv[] = {b->python, "-c", script, file, text, ids, parts, n, NULL};
	const struct proc_cfg cfg = {.argv = argv, .env = env};
	struct proc *p = NULL;
	(void)snprintf(text, sizeof text, "%s/text", b->dir);
	(void)snprintf(ids, sizeof ids, "%s/ids", b->dir);
	(void)snprintf(parts, sizeof parts, "%s/parts", b->dir);
	(void)snprintf(n, sizeof n, "%" PRIu64, b->rounds);
	CGN_TRY(disk_write_file_atomic(text, cgn_buf_view(&b->text), 0600, err));
	CGN_TRY(disk_write_file_atomic(parts, cgn_buf_view(&b->parts), 0600, err));
	CGN_TRY(cgn_loop_new(&b->loop, err));
	cgn_rc rc = proc_spawn(b->loop, &cfg, &ops, b, &p, err);
	if (!cgn_ok(rc))
		cgn_loop_stop(b->loop);
	cgn_loop_run(b->loop);
	cgn_loop_free(&b->loop);
	return rc;
}

static CGN_RC same_ids(const struct bench *b, const struct tokenizer_ids *ids, const char *file,
	struct cgn_err *err)
{
	char path[80];
	struct cgn_buf theirs = {0};
	(void)snprintf(path, sizeof path, "%s/ids", b->dir);
	CGN_TRY(disk_read_file(path, TEXT_LIMIT * 4, &theirs, err));
	size_t n = theirs.n / sizeof *ids->ids, i = 0;
	const uint32_t *v = (const uint32_t *)(const void *)theirs.p;
	while (i < n && i < ids->n && v[i] == ids->ids[i])
		i++;
	bool same = i == n && i == ids->n;
	cgn_buf_fini(&theirs);
	return same ? CGN_OK
		    : CGN_FAIL(err, INTERNAL,
			      "%s: ids differ from token %zu on (%zu here, %zu from Hugging Face's)", file, i,
			      ids->n, n);
}

/* Run the other library. A missing package does not count as an error; other failures do. */
static CGN_RC measure_theirs(struct bench *b, const struct tokenizer_ids *ids, struct result *r,
	struct cgn_err *err)
{
	char why[80];
	cgn_rc rc = run_python(b, r->file, err);
	if (rc.code == CGN_NOT_FOUND || strcmp(b->line, "ABSENT") == 0)
		return CGN_OK;
	CGN_TRY(rc);
	if (sscanf(b->line, "DONE %31s %lf %lf", r->other.version, &r->other.load, &r->other.best) != 3)
		return CGN_FAIL(err, UNAVAILABLE, "%s failed to run Hugging Face's tokenizers: %s: %s",
			b->python, proc_exit_text(&b->exit, why, sizeof why), b->line);
	r->other.there = true;
	return same_ids(b, ids, r->file, err);
}

/* ---- report ---- */

static double mb_per_second(const struct bench *b, double seconds)
{
	return (double)b->text.n / 1e6 / seconds;
}

static void prompt_json(const struct bench_prompt *p, struct json_out *o)
{
	json_key_open(o, "prompt", '{');
	json_key_u64(o, "tokens", p->tokens);
	json_key_u64(o, "bytes", p->bytes);
	json_key_u64(o, "messages", p->messages);
	json_key_f64(o, "first_seconds", p->first);
	json_key_f64(o, "repeat_seconds", p->repeat);
	json_key_f64(o, "next_turn_seconds", p->turn);
	json_key_u64(o, "repeat_bytes_tokenized", p->repeat_bytes);
	json_key_u64(o, "next_turn_bytes_tokenized", p->turn_bytes);
	json_key_u64(o, "cache_bytes", p->cache_bytes);
	json_close(o, '}');
}

static void one_json(const struct bench *b, const struct result *r, struct json_out *o)
{
	json_open(o, '{');
	json_key_z(o, "file", r->file);
	json_key_u64(o, "tokens", r->tokens);
	json_key_f64(o, "mb_per_second", mb_per_second(b, r->best));
	json_key_f64(o, "tokens_per_second", (double)r->tokens / r->best);
	json_key_f64(o, "load_seconds", r->load);
	json_key_u64(o, "memory_bytes", r->memory);
	prompt_json(&r->prompt, o);
	json_key(o, "huggingface");
	if (!r->other.there) {
		json_put_null(o);
	} else {
		json_open(o, '{');
		json_key_z(o, "version", r->other.version);
		json_key_bool(o, "ids_identical", true);
		json_key_f64(o, "mb_per_second", mb_per_second(b, r->other.best));
		json_key_f64(o, "load_seconds", r->other.load);
		json_close(o, '}');
		json_key_f64(o, "ratio", r->other.best / r->best);
	}
	json_close(o, '}');
}

static CGN_RC report_json(const struct bench *b, const struct result *results, size_t n, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "tokenizer");
	json_key_u64(o, "text_bytes", b->text.n);
	json_key_u64(o, "rounds", b->rounds);
	json_key_open(o, "files", '[');
	for (size_t i = 0; i < n; i++)
		one_json(b, &results[i], o);
	return report_end(&doc, err);
}

static CGN_RC report_table(const struct bench *b, const struct result *results, size_t n, struct cgn_err *err)
{
	struct ctl_table t = {0};
	for (const struct result *r = results; r < results + n; r++) {
		CTL_CELL(&t, "FILE", "%s", r->file);
		CTL_CELL(&t, "MB/S", "%.1f", mb_per_second(b, r->best));
		CTL_CELL(&t, "TOKENS/S", "%.0f", (double)r->tokens / r->best);
		CTL_CELL(&t, "LOAD MS", "%.0f", r->load * 1e3);
		CTL_CELL(&t, "MEMORY MB", "%.1f", (double)r->memory / 1e6);
		CTL_CELL(&t, "PROMPT MS", "%.2f", r->prompt.first * 1e3);
		CTL_CELL(&t, "AGAIN MS", "%.3f", r->prompt.repeat * 1e3);
		CTL_CELL(&t, "TURN MS", "%.3f", r->prompt.turn * 1e3);
		bool there = r->other.there;
		CTL_CELL(&t, "HF MB/S", there ? "%.1f" : "-", there ? mb_per_second(b, r->other.best) : 0);
		CTL_CELL(&t, "HF LOAD MS", there ? "%.0f" : "-", r->other.load * 1e3);
		CTL_CELL(&t, "RATIO", there ? "%.2f" : "-", r->other.best / r->best);
		CTL_CELL(&t, "IDS", "%s", there ? "identical" : "not compared");
	}
	return ctl_table_print(&t, false, err);
}

/* ---- the verb ---- */

static CGN_RC measure_file(const struct ctl_args *a, struct bench *b, struct result *r, struct cgn_err *err)
{
	struct tokenizer_ids ids = {0};
	cgn_rc rc = measure_ours(b, &ids, r, err);
	if (cgn_ok(rc) && !ctl_switch(a, "--alone"))
		rc = measure_theirs(b, &ids, r, err);
	tokenizer_ids_fini(&ids);
	return rc;
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	struct result results[CTL_MAX_WORDS] = {0};
	if (a->n_words == 0)
		return CGN_FAIL(err, INVALID, "name a tokenizer.json");
	CGN_TRY(ctl_flag_u64(a, "--rounds", 1, 1000, &b->rounds, err));
	CGN_TRY(ctl_flag_u64(a, "--prompt-tokens", 1, 16000000, &b->prompt_tokens, err));
	b->python = ctl_flag(a, "--python");
	CGN_TRY(read_text(a, b, err));
	for (size_t i = 0; i < a->n_words; i++) {
		results[i].file = a->words[i];
		CGN_TRY(measure_file(a, b, &results[i], err));
	}
	return (a->json ? report_json : report_table)(b, results, a->n_words, err);
}

static void bench_clear(const char *dir)
{
	static const char *const names[] = {"text", "parts", "ids"};
	char path[80];
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		(void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		(void)unlink(path);
	}
	(void)rmdir(dir);
}

CGN_RC ctl_bench_tokenizer(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench b = {.dir = "/tmp/cgn-bench.XXXXXX"};
	if (mkdtemp(b.dir) == NULL)
		return CGN_FAIL(err, STORAGE, "cannot make a folder in /tmp");
	cgn_rc rc = run_bench(a, &b, err);
	bench_clear(b.dir);
	cgn_buf_fini(&b.text);
	cgn_buf_fini(&b.parts);
	return rc;
}
