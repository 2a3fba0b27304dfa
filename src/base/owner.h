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

/*
 * From here on with the rights of `owner`, which it can neither leave nor leave anything behind
 * with: what it sets is undone. `read_only`: it may not write either. An error that ends the
 * transaction, or the subtransaction, ends it, too.
 */
extern MipUser mip_become_owner(Oid owner, bool read_only);
extern void mip_become_again(MipUser user);

#endif							/* MIP_OWNER_H */
