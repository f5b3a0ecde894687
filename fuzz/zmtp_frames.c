/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz zmtp_frames: greeting, commands and messages are the same for any cuts of the stream; the first byte
 * chooses the cuts. */
#include <stdlib.h>

#include "io/wire/zmtp/zmtp_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void note_frame(struct cgn_buf *b, const struct zmtp_wire *w, enum zmtp_got got)
{
	struct cgn_str data;
	cgn_buf_u64(b, got);
	if (got == ZMTP_GOT_COMMAND) {
		cgn_buf_str(b, w->command);
		if (zmtp_command_is(w->command, "READY", &data))
			cgn_buf_str(b, zmtp_property(data, "Socket-Type"));
	}
	for (size_t i = 0; got == ZMTP_GOT_MESSAGE && i < w->n_parts; i++) {
		cgn_buf_str(b, w->parts[i]);
		cgn_buf_char(b, '|');
	}
}

static void scan_stream(struct cgn_str bytes, size_t step, struct cgn_buf *seen)
{
	struct zmtp_wire w;
	zmtp_wire_init(&w, 4096);
	for (size_t at = 0; at < bytes.n; at += step) {
		struct cgn_str part = {bytes.p + at, bytes.n - at < step ? bytes.n - at : step};
		char *chunk = cgn_str_dupz(part); /* A block of its own, freed after the call. */
		CGN_MUST(chunk != NULL);
		struct cgn_str rest = {chunk, part.n};
		enum zmtp_got got;
		while ((got = zmtp_wire_next(&w, &rest)) != ZMTP_GOT_NOTHING && got != ZMTP_GOT_FAULT)
			note_frame(seen, &w, got);
		CGN_MUST(got == ZMTP_GOT_FAULT || rest.n == 0);
		free(chunk);
	}
	CGN_MUST(w.body.n <= 4096 + ZMTP_MAX_COMMAND);
	zmtp_wire_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 2)
		return 0;
	struct cgn_buf whole = {0}, parts = {0}, greeted = {0};
	struct cgn_str bytes = {(const char *)data + 1, n - 1};
	if ((data[0] & 1) != 0) { /* Skip the greeting. */
		zmtp_put_greeting(&greeted);
		cgn_buf_str(&greeted, bytes);
		bytes = cgn_buf_view(&greeted);
	}
	scan_stream(bytes, bytes.n, &whole);
	scan_stream(bytes, (size_t)data[0] / 2 + 1, &parts);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&parts)));
	cgn_buf_fini(&whole);
	cgn_buf_fini(&parts);
	cgn_buf_fini(&greeted);
	return 0;
}
