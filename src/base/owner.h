/*-------------------------------------------------------------------------
 *
 * owner.h
 *	  Executing code of a table's owner, as when he does it himself.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_OWNER_H
#define MIP_OWNER_H

/* Who it was before */
typedef struct MipUser
{
	Oid			id;
	int			context;
	int			level;			/* of settings */
	bool		read_only;
} MipUser;

/* Has this session anything temporary, or has it had? */
extern bool mip_has_temporary_schema(void);

/*
 * What is temporary in this session may be found by the owner's code, in the end, whatever its
 * search_path: so a caller who has something temporary, and may not become the owner, has
 * that code not executed, for it would execute his own with the owner's rights.
 */
extern bool mip_may_execute_code_of(Oid owner);

/*
 * From here on with the rights of `owner`, which it can neither leave nor leave anything behind
 * with: what it sets is undone. By name it finds nothing of the caller's, as where PostgreSQL
 * builds an index, from 17 on. `read_only`: it may not write either. An error that ends the
 * transaction, or the subtransaction, ends it, too.
 */
extern MipUser mip_become_owner(Oid owner, bool read_only);
extern void mip_become_again(MipUser user);

#endif							/* MIP_OWNER_H */
