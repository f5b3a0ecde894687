/* SPDX-License-Identifier: Apache-2.0 */
/* input: the lines of a batch's input file. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/sum/sum.h"
#include "router/answer/batch/runner_priv.h"

#define LINE_MAX_BYTES ((size_t)16 << 20)

/* A custom_id by its sum, to find two of them that are equal. */
struct id_seen {
	uint64_t sum, line;
};

static int seen_order(const void *a, const void *b)
{
	const struct id_seen *x = a, *y = b;
	if (x->sum != y->sum)
		return x->sum < y->sum ? -1 : 1;
	return x->line < y->line ? -1 : x->line > y->line;
}

static bool line_is_blank(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] != ' ' && s.p[i] != '\t' && s.p[i] != '\r')
			return false;
	return true;
}

/* Note where each line is that is not blank. False: no memory. */
static bool lines_find(struct batch_run *run, struct cgn_str text, uint64_t at, uint32_t most)
{
	struct cgn_str rest = text;
	size_t cap = 0;
	while (rest.p != NULL && rest.n > 0 && run->n <= most) {
		struct cgn_str one = cgn_str_split(&rest, '\n');
		if (line_is_blank(one) || one.n > UINT32_MAX)
			continue;
		if (run->n == cap) {
			cap = cap > 0 ? 2 * cap : 256;
			struct run_line *grown = reallocarray(run->lines, cap, sizeof *grown);
			if (grown == NULL)
				return false;
			run->lines = grown;
		}
		run->lines[run->n++] =
			(struct run_line){.at = at + (uint64_t)(one.p - text.p), .length = (uint32_t)one.n};
	}
	run->left = run->n;
	return true;
}

static void ids_compare(struct batch_run *run, struct id_seen *seen)
{
	qsort(seen, run->n, sizeof *seen, seen_order);
	for (size_t i = 1; i < run->n; i++) {
		char text[96];
		if (seen[i].sum != seen[i - 1].sum)
			continue;
		(void)snprintf(text, sizeof text, "custom_id is the same as that of line %llu",
			(unsigned long long)seen[i - 1].line + 1);
		batch_fault_add(&run->b, "duplicate_custom_id", seen[i].line + 1, text);
	}
}

/* Check all lines; numbers count the lines that are not blank. */
static void lines_check(struct batch_run *run, struct cgn_str text, uint64_t offset)
{
	struct id_seen *seen = calloc(run->n, sizeof *seen);
	struct batch_line line;
	for (size_t i = 0; i < run->n && seen != NULL && run->b.n_faults < BATCH_ERRORS; i++) {
		const struct run_line *l = &run->lines[i];
		const char *code = "line_too_long";
		struct cgn_err err = {.msg = "the line has more than 16 MiB"};
		cgn_rc rc = CGN_RC_OF(CGN_INVALID);
		if (l->length <= LINE_MAX_BYTES)
			rc = batch_line_read((struct cgn_str){text.p + (l->at - offset), l->length},
				run->b.endpoint, &line, &code, &err);
		if (!cgn_ok(rc))
			batch_fault_add(&run->b, code, i + 1, err.msg);
		else
			seen[i] = (struct id_seen){sum64(line.custom_id, strlen(line.custom_id)), i};
	}
	if (seen == NULL)
		batch_fault_add(&run->b, "no_memory", 0, "the router has no memory for the batch");
	else if (run->b.n_faults == 0)
		ids_compare(run, seen);
	free(seen);
}

static void text_take(struct batch_run *run, struct cgn_str text, uint64_t offset, uint32_t max_lines)
{
	char why[96];
	bool fresh = run->b.status == BATCH_VALIDATING;
	if (!lines_find(run, text, offset, max_lines))
		batch_fault_add(&run->b, "no_memory", 0, "the router has no memory for the batch");
	else if (run->n == 0)
		batch_fault_add(&run->b, "empty_file", 0, "the input file has no lines");
	else if (fresh && run->n > max_lines) {
		(void)snprintf(why, sizeof why, "the input file has more than %u lines (batch.max_lines)",
			max_lines);
		batch_fault_add(&run->b, "too_many_lines", 0, why);
	} else if (fresh)
		lines_check(run, text, offset);
}

CGN_RC batch_input_open(struct batch_run *run, uint32_t max_lines, struct cgn_err *err)
{
	struct filestore_file f;
	struct filestore *files = run->owner->cfg.shared->files;
	void *map = MAP_FAILED;
	cgn_rc rc = CGN_RC_OF(CGN_NOT_FOUND);
	if (filestore_find(files, cgn_str_of(run->b.tenant), cgn_str_of(run->b.input), &f))
		rc = filestore_read(files, &f, &run->input, err);
	if (rc.code == CGN_NOT_FOUND) {
		batch_fault_add(&run->b, "invalid_input_file", 0, "the input file does not exist any more");
		return CGN_OK;
	}
	CGN_TRY(rc);
	uint64_t offset = f.remote ? 0 : f.offset;
	if (f.bytes > 0)
		map = mmap(NULL, offset + f.bytes, PROT_READ, MAP_PRIVATE, run->input, 0);
	if (f.bytes > 0 && map == MAP_FAILED) {
		rc = CGN_FAIL(err, STORAGE, "cannot read the input file: %s", strerror(errno));
		(void)close(run->input);
		run->input = -1;
		return rc;
	}
	if (run->b.status != BATCH_VALIDATING)
		max_lines = UINT32_MAX - 1; /* The limit of its start holds for a batch. */
	struct cgn_str all = {map == MAP_FAILED ? "" : (const char *)map + offset, f.bytes};
	struct cgn_str text = json_skip_bom(all);
	text_take(run, text, offset + (all.n - text.n), max_lines);
	if (map != MAP_FAILED)
		(void)munmap(map, offset + f.bytes);
	run->b.total = run->n;
	return CGN_OK;
}

CGN_RC batch_input_line(struct batch_run *run, size_t i, struct cgn_buf *text, struct batch_line *out,
	struct cgn_err *err)
{
	const struct run_line *l = &run->lines[i];
	const char *code;
	char *p = cgn_buf_room(text, l->length);
	if (p == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	ssize_t n = pread(run->input, p, l->length, (off_t)l->at);
	if (n != (ssize_t)l->length)
		return CGN_FAIL(err, STORAGE, "cannot read the input file: %s",
			n < 0 ? strerror(errno) : "it is too short");
	cgn_buf_grew(text, l->length);
	return batch_line_read(cgn_buf_view(text), run->b.endpoint, out, &code, err);
}
