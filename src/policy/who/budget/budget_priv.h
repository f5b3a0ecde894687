/* SPDX-License-Identifier: Apache-2.0 */
/* budget, inside: the accounts of a book in the order in which they were made. */
#pragma once
#include "policy/who/budget/budget.h"

const struct budget_account *budget_book_at(const struct budget_book *b, size_t i);
/* Return the account of |name|, made if there is none. NULL: too many, or no name. */
struct budget_account *budget_book_make(struct budget_book *b, struct cgn_str name);
void budget_book_clear(struct budget_book *b);
