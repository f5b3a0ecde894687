/* SPDX-License-Identifier: Apache-2.0 */
/* refusal: an error answer in OpenAI's terms. Pure. */
#pragma once
#include <stdbool.h>

struct sim_refusal {
	int status;
	const char *type, *code, *param; /* Static; |code| and |param| may be NULL. */
	char msg[400];
};

/* Fill |no| and return false. |code| and |param| must be static; the type follows from |status|. */
bool sim_refuse(struct sim_refusal *no, int status, const char *code, const char *param, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
