/* SPDX-License-Identifier: Apache-2.0 */
/* result: the journal of a batch, and the files of output and errors that are made of it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log/log.h"
#include "router/answer/batch/runner_priv.h"

/* Map the whole journal; an empty one is "". */
static CGN_RC journal_map(const struct batch_run *run, struct cgn_str *out, struct cgn_err *err)
{
	struct stat st;
	*out = (struct cgn_str){"", 0};
	if (fstat(run->journal, &st) != 0)
		return CGN_FAIL(err, STORAGE, "cannot read the journal: %s", strerror(errno));
	if (st.st_size == 0)
		return CGN_OK;
	void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, run->journal, 0);
	if (p == MAP_FAILED)
		return CGN_FAIL(err, STORAGE, "cannot read the journal: %s", strerror(errno));
	*out = (struct cgn_str){p, (size_t)st.st_size};
	return CGN_OK;
}

static void journal_unmap(struct cgn_str text)
{
	if (text.n > 0)
		(void)munmap((void *)(uintptr_t)text.p, text.n);
}

static void journal_close(struct batch_run *run)
{
	(void)close(run->journal);
	run->journal = -1;
}

static void record_count(struct batch_run *run, const struct batch_record *r)
{
	bool there = r->line < run->n; /* Not so when the input file was deleted meanwhile. */
	if (r->tried) {
		if (there && run->lines[r->line].tries < BATCH_TRIES)
			run->lines[r->line].tries++;
		return;
	}
	if (there && run->lines[r->line].state == LINE_DONE)
		return;
	if (there) {
		run->lines[r->line].state = LINE_DONE;
		run->left--;
	}
	if (r->failed)
		run->b.failed++;
	else
		run->b.completed++;
}

CGN_RC batch_journal_open(struct batch_run *run, struct cgn_err *err)
{
	char path[PATH_MAX];
	struct cgn_str text, rest;
	struct batch_record r;
	batches_path(run->owner->cfg.shared->batches, run->b.id, ".journal", path);
	run->journal = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (run->journal < 0)
		return CGN_FAIL(err, STORAGE, "cannot open the journal %s: %s", path, strerror(errno));
	cgn_rc rc = journal_map(run, &text, err);
	if (!cgn_ok(rc)) {
		journal_close(run);
		return rc;
	}
	run->b.completed = run->b.failed = 0;
	for (rest = text; rest.n > 0 && batch_record_next(&rest, &r);)
		record_count(run, &r);
	run->journal_bytes = text.n - rest.n;
	journal_unmap(text);
	if (rest.n > 0)
		cgn_log(WARN, "batch.journal_cut", F_STR("batch", run->b.id), F_U64("bytes", rest.n),
			F_STR("then", "a record that was half written is dropped; its line is asked again"));
	run->journal_torn = rest.n > 0;
	batches_count(run->owner->cfg.shared->batches, &run->b);
	return CGN_OK;
}

void batch_journal_add(struct batch_run *run, size_t line, const struct batch_answer *a, bool failed)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = BATCH_RECORD_MAX};
	size_t had = run->fresh.n;
	batch_answer_put(a, &text);
	if (!text.bad)
		batch_record_put(&(struct batch_record){line, failed, cgn_buf_view(&text)}, &run->fresh);
	if (text.bad || run->fresh.bad) {
		run->fresh.n = had;
		run->fresh.bad = false;
		run->lines[line].state = LINE_WAITS; /* No memory: ask it again. */
		run->cursor = line < run->cursor ? line : run->cursor;
		return;
	}
	run->lines[line].state = LINE_DONE;
	run->left--;
	run->fresh_failed += failed;
	run->fresh_completed += !failed;
}

void batch_journal_tried(struct batch_run *run, size_t line)
{
	size_t had = run->fresh.n;
	batch_record_put(&(struct batch_record){.line = line, .tried = true, .text = CGN_STR("")},
		&run->fresh);
	if (run->fresh.bad) { /* No memory: a restart forgets this try. */
		run->fresh.n = had;
		run->fresh.bad = false;
	}
}

/* Cut off what a write that failed left behind. A record must not come twice, and nothing may be between records. */
static CGN_RC journal_mend(struct batch_run *run, struct cgn_err *err)
{
	if (!run->journal_torn)
		return CGN_OK;
	if (ftruncate(run->journal, (off_t)run->journal_bytes) != 0)
		return CGN_FAIL(err, STORAGE, "cannot cut the journal: %s", strerror(errno));
	run->journal_torn = false;
	return CGN_OK;
}

CGN_RC batch_journal_flush(struct batch_run *run, struct cgn_err *err)
{
	struct cgn_str s = cgn_buf_view(&run->fresh);
	if (s.n == 0)
		return CGN_OK;
	CGN_TRY(journal_mend(run, err));
	while (s.n > 0) {
		ssize_t n = write(run->journal, s.p, s.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		s = (struct cgn_str){s.p + n, s.n - (size_t)n};
	}
	if (s.n > 0 || fdatasync(run->journal) != 0) {
		run->journal_torn = true;
		return CGN_FAIL(err, STORAGE, "cannot write the journal: %s", strerror(errno));
	}
	run->journal_bytes += run->fresh.n;
	cgn_buf_fini(&run->fresh);
	run->b.completed += run->fresh_completed;
	run->b.failed += run->fresh_failed;
	run->fresh_completed = run->fresh_failed = 0;
	batches_count(run->owner->cfg.shared->batches, &run->b);
	return CGN_OK;
}

/* ---- the files ---- */

struct result_file {
	struct filestore_upload *upload; /* NULL: no line belongs to it. */
	uint64_t bytes;
};

static CGN_RC result_add(struct batch_run *run, struct result_file *f, const char *id, struct cgn_str text,
	struct cgn_err *err)
{
	struct filestore *files = run->owner->cfg.shared->files;
	if (f->upload == NULL)
		CGN_TRY(filestore_begin(files, cgn_str_of(run->b.tenant), id, &f->upload, err));
	f->bytes += text.n;
	return filestore_add(f->upload, text, err);
}

static CGN_RC records_copy(struct batch_run *run, struct cgn_str text, struct result_file *out,
	struct result_file *bad, struct cgn_err *err)
{
	struct batch_record r;
	while (text.n > 0 && batch_record_next(&text, &r))
		if (!r.tried)
			CGN_TRY(result_add(run, r.failed ? bad : out, r.failed ? run->b.error : run->b.output,
				r.text, err));
	return CGN_OK;
}

/* Add the lines that have no answer. */
static CGN_RC rest_add(struct batch_run *run, struct result_file *bad, const char *code, const char *message,
	struct cgn_err *err)
{
	for (size_t i = 0; i < run->n; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, line_text = {0};
		struct batch_line line = {.custom_id = ""};
		if (run->lines[i].state == LINE_DONE)
			continue;
		CGN_TRY(batch_input_line(run, i, &line_text, &line, err));
		batch_answer_put(&(struct batch_answer){.batch_id = run->b.id,
					 .custom_id = line.custom_id,
					 .line = i,
					 .code = code,
					 .message = message},
			&text);
		if (text.bad)
			return CGN_FAIL(err, NO_MEMORY, "out of memory");
		CGN_TRY(result_add(run, bad, run->b.error, cgn_buf_view(&text), err));
	}
	return CGN_OK;
}

static CGN_RC result_commit(struct batch_run *run, struct result_file *f, const char *what, bool *has,
	struct cgn_err *err)
{
	struct filestore_file meta = {.purpose = "batch_output", .bytes = f->bytes};
	if (f->upload == NULL)
		return CGN_OK;
	(void)snprintf(meta.name, sizeof meta.name, "%s_%s.jsonl", run->b.id, what);
	*has = true;
	return filestore_commit(&f->upload, &meta, err);
}

CGN_RC batch_result_write(struct batch_run *run, const char *code, const char *message, struct cgn_err *err)
{
	struct result_file out = {0}, bad = {0};
	struct cgn_str text;
	CGN_TRY(journal_map(run, &text, err));
	cgn_rc rc = records_copy(run, text, &out, &bad, err);
	if (cgn_ok(rc) && code != NULL)
		rc = rest_add(run, &bad, code, message, err);
	journal_unmap(text);
	if (cgn_ok(rc))
		rc = result_commit(run, &out, "output", &run->b.has_output, err);
	if (cgn_ok(rc))
		rc = result_commit(run, &bad, "error", &run->b.has_error, err);
	filestore_cancel(&out.upload);
	filestore_cancel(&bad.upload);
	return rc;
}
