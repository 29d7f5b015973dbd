-- How a stored todo is shown.
--
-- Functions return the composite switchboard.todo, not the table's row type, so that columns can
-- come and go. The lease token is left out: only the claimer gets it, from the claim itself.

do $$  -- here and not in a migration: the functions that build todos change in the same transaction
begin
    alter type switchboard.todo add attribute admission jsonb;
exception when duplicate_column then null;
end $$;

create or replace function switchboard.is_verified(p_trust_mode text) returns boolean
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return p_trust_mode not in ('token', 'open');
end $$;
comment on function switchboard.is_verified(text) is 'Whether a todo of this trust came from a verified sender: all but token and open.';

create or replace function switchboard.show(p_row switchboard.todos, p_token boolean default false) returns switchboard.todo
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_row.id is null then
        return null;
    end if;
    return row(
        p_row.id, p_row.endpoint_id, p_row.queue, p_row.state, p_row.kind, p_row.source, p_row.title, p_row.payload,
        p_row.assignee, p_row.owner, case when p_row.state = 'claimed' then p_row.due_at end, case when p_token then p_row.lease_token end, p_row.claimed_at,
        p_row.attempt, p_row.max_attempts, case when p_row.state = 'failed' then p_row.due_at end,
        p_row.state = 'failed' and p_row.due_at is null, p_row.result,
        p_row.idempotency_key, p_row.trust_mode, p_row.trust_mode not in ('token', 'open'), p_row.ring_attempts, p_row.last_ringed_at,
        p_row.event_id, p_row.created_at, p_row.updated_at, p_row.completed_at, p_row.claims, null)::todo;
end $$;
comment on function switchboard.show(switchboard.todos, boolean) is 'A row of todos as callers see it, with its lease token only when p_token.';
