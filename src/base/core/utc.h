/* SPDX-License-Identifier: Apache-2.0 */
/* utc: instants as text. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Write an instant, in Unix seconds, by |format| of strftime, in UTC. False, and "", if it has no text or |out| has no
 * room. */
bool cgn_utc_text(int64_t seconds, const char *format, char *out, size_t cap)
	__attribute__((format(strftime, 2, 0)));
