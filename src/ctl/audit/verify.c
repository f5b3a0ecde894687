/* SPDX-License-Identifier: Apache-2.0 */
/* verify: checks the chain of audit logs. */
/* audit, the room: the verbs of audit logs. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/codec/codec.h"
#include "base/json/json.h"
#include "ctl/ctl.h"
#include "policy/who/audit/audit.h"

#define ROTATED_MOST 1000U /* The most files that security.audit_files allows. */

struct audit_walk {
	struct audit_chain chain;
	uint64_t lines, first; /* first: number of the first line; 0: there was none yet. */
	uint64_t files;
};

/* The first line of the first file may be in the middle of a chain whose older files are gone. */
static CGN_RC line_check(struct audit_walk *w, struct cgn_str line, struct cgn_err *err)
{
	CGN_TRY(w->first == 0 ? audit_begin(&w->chain, line, err) : audit_follow(&w->chain, line, err));
	if (w->first == 0)
		w->first = w->chain.seq;
	w->lines++;
	return CGN_OK;
}

static CGN_RC lines_check(struct audit_walk *w, const char *path, FILE *f, struct cgn_err *err)
{
	char line[AUDIT_LINE_MAX +
		3]; /* Has room for one byte more than a line may have, its end, and NUL. */
	struct cgn_err why;
	for (uint64_t nth = 1; fgets(line, sizeof line, f) != NULL; nth++) {
		size_t n = strlen(line);
		bool ended = n > 0 && line[n - 1] == '\n';
		if (!ended && n <= AUDIT_LINE_MAX)
			return CGN_FAIL(err, STORAGE,
				"%s:%" PRIu64 ": the line has no end: the file was cut there", path, nth);
		if (!cgn_ok(line_check(w, (struct cgn_str){line, n - ended}, &why)))
			return CGN_FAIL(err, STORAGE, "%s:%" PRIu64 ": %s", path, nth, why.msg);
	}
	return ferror(f) ? CGN_FAIL(err, STORAGE, "cannot read %s: %s", path, strerror(errno)) : CGN_OK;
}

static CGN_RC file_check(struct audit_walk *w, const char *path, struct cgn_err *err)
{
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot open %s: %s", path,
			strerror(errno));
	w->files++;
	cgn_rc rc = lines_check(w, path, f, err);
	(void)fclose(f);
	return rc;
}

/* Check FILE.N, ..., FILE.1, then FILE. */
static CGN_RC rotated_check(struct audit_walk *w, const char *path, struct cgn_err *err)
{
	char name[4200];
	unsigned oldest = 0;
	for (unsigned i = 1; i < ROTATED_MOST; i++) {
		(void)snprintf(name, sizeof name, "%s.%u", path, i);
		if (access(name, F_OK) != 0)
			break;
		oldest = i;
	}
	for (unsigned i = oldest; i > 0; i--) {
		(void)snprintf(name, sizeof name, "%s.%u", path, i);
		CGN_TRY(file_check(w, name, err));
	}
	return file_check(w, path, err);
}

static void head_text(const struct audit_walk *w, struct cgn_buf *out)
{
	hex_put(out, (struct cgn_str){(const char *)w->chain.head.b, sizeof w->chain.head.b});
}

static CGN_RC head_expect(const struct audit_walk *w, const char *want, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf head = {0};
	head_text(w, &head);
	if (want == NULL || strcmp(want, cgn_buf_z(&head)) == 0)
		return CGN_OK;
	return CGN_FAIL(err, STORAGE,
		"the last line's hash is %s, not %s: lines were added or cut off at the end",
		cgn_buf_z(&head), want);
}

static CGN_RC walk_show(const struct ctl_args *a, const struct audit_walk *w, struct cgn_err *err)
{
	struct cgn_buf out = {0}, head = {0};
	head_text(w, &head);
	if (a->json) {
		struct json_out o = json_out_to(&out);
		json_open(&o, '{');
		json_key_u64(&o, "files", w->files);
		json_key_u64(&o, "lines", w->lines);
		json_key_u64(&o, "first", w->first);
		json_key_u64(&o, "last", w->chain.seq);
		json_key_z(&o, "head", w->lines > 0 ? cgn_buf_z(&head) : "");
		json_close(&o, '}');
		cgn_buf_char(&out, '\n');
	} else if (w->lines == 0) {
		cgn_buf_putz(&out, "no lines\n");
	} else {
		cgn_buf_fmt(&out,
			"%" PRIu64 " lines in %" PRIu64 " files are whole: %" PRIu64 " to %" PRIu64
			"\nhead %s\n",
			w->lines, w->files, w->first, w->chain.seq, cgn_buf_z(&head));
	}
	cgn_buf_fini(&head);
	return ctl_print(&out, err);
}

CGN_RC ctl_audit_verify(const struct ctl_args *a, struct cgn_err *err)
{
	struct audit_walk w = {.lines = 0};
	for (size_t i = 0; i < a->n_words; i++)
		CGN_TRY(a->n_words == 1 ? rotated_check(&w, a->words[i], err)
					: file_check(&w, a->words[i], err));
	CGN_TRY(head_expect(&w, ctl_flag(a, "--head"), err));
	return walk_show(a, &w, err);
}
