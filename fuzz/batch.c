/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz batch: no line of an input and no journal breaks its reading; a record that was read is written the same again; an
 * answer is one line of JSON whatever the body. */
#include "policy/answer/batch/batch.h"
#include "base/json/json.h"
#include "policy/who/claims/kept.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_journal(struct cgn_str text)
{
	struct batch_record r;
	struct cgn_buf b = {0};
	struct cgn_str rest = text;
	for (size_t had = rest.n; rest.n > 0 && batch_record_next(&rest, &r); had = rest.n) {
		CGN_MUST(rest.n < had && r.text.p >= text.p && r.text.p + r.text.n <= text.p + text.n);
		b.n = 0;
		batch_record_put(&r, &b);
		struct cgn_str again = cgn_buf_view(&b);
		CGN_MUST(batch_record_next(&again, &r) && again.n == 0);
	}
	cgn_buf_fini(&b);
}

static void check_answer(struct cgn_str body)
{
	struct cgn_buf b = {0};
	batch_answer_put(&(struct batch_answer){.batch_id = "b",
				 .custom_id = "c",
				 .status = 200,
				 .body = body},
		&b);
	CGN_MUST(memchr(b.p, '\n', b.n) == b.p + b.n - 1);
	cgn_buf_fini(&b);
}

/* A holder that was read is written and read again unchanged. */
static void check_holder(struct cgn_str text)
{
	struct claims_kept h, same;
	struct cgn_buf once = {0}, field = {0}, twice = {0};
	(void)claims_kept_unfold(text, &h);
	claims_kept_field(text, &field);
	if (claims_kept_unfold(cgn_buf_view(&field), &h)) {
		claims_kept_put(&h, &once);
		field.n = 0;
		claims_kept_field(cgn_buf_view(&once), &field);
		CGN_MUST(claims_kept_unfold(cgn_buf_view(&field), &same));
		claims_kept_put(&same, &twice);
		CGN_MUST(cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
	}
	cgn_buf_fini(&once);
	cgn_buf_fini(&field);
	cgn_buf_fini(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str text = {(const char *)data, n};
	struct batch_line line;
	struct batch b = {0};
	const char *code;
	if (cgn_ok(batch_line_read(text, "/v1/embeddings", &line, &code, NULL)))
		CGN_MUST(line.custom_id[0] != '\0' && line.body.p >= text.p);
	if (cgn_ok(batch_file_read(text, &b, NULL)))
		batch_fini(&b);
	check_journal(text);
	check_answer(text);
	check_holder(text);
	return 0;
}
