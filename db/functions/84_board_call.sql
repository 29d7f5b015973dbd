-- The board's door: one call a page.
--
-- The shell asks for a page with the digest of a session's secret, or of an operator token, and gets the whole
-- document of it, or NULL when the digest opens nothing any more, or an error as a value; it renders, and decides
-- nothing. The frame of every page is the same: who looks, the clock by which all its times are said, and the rail.
-- A page that is shown goes stale when somebody commits. board_changes() says whether anybody may have: a text
-- that is another one after each transaction that wrote, of any database of the server. One such question for all
-- viewers, and the pages are asked for again only when its answer is new.

create or replace function switchboard.board_page(p_human_id uuid, p_page text, p_args jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp set jit = off  -- compiling would take longer than the page
as $$
declare
    v_now  timestamptz := clock();
    v_args jsonb       := coalesce(p_args, '{}');
    v_me   jsonb;
    v_page jsonb;
begin
    select jsonb_build_object('id', h.id, 'name', h.name) into v_me from humans h where h.id = p_human_id;
    if not found then
        perform refuse('not_found', 'there is no such human: list_humans shows them');
    end if;
    case p_page
        when 'exchange' then v_page := board_exchange(p_human_id, v_args, v_now);
        when 'todo' then v_page := board_todo(p_human_id, v_args, v_now);
        when 'endpoints' then v_page := board_endpoints(p_human_id, v_args, v_now);
        when 'endpoint' then v_page := board_endpoint_page(p_human_id, v_args, v_now);
        when 'receivers' then v_page := board_receivers(p_human_id, v_args, v_now);
        when 'deliveries' then v_page := board_deliveries(p_human_id, v_args, v_now);
        when 'delivery' then v_page := board_delivery(p_human_id, v_args, v_now);
        when 'hooks' then v_page := board_hooks(p_human_id, v_args, v_now);
        when 'budget' then v_page := board_budget(p_human_id, v_args, v_now);
        when 'health' then v_page := board_health(p_human_id, v_args, v_now);
        else perform refuse('not_found', 'there is no such page: begin at the exchange');
    end case;
    return jsonb_build_object('page', p_page, 'now', board_time(v_now, v_now) -> 'at', 'me', v_me, 'status', board_status(p_human_id, v_now)) || v_page;
end $$;
comment on function switchboard.board_page(uuid, text, jsonb) is
'A page of the board for a human: {page, now, me: {id, name}, status: the rail} and what the page holds. p_page: exchange, todo, endpoints, endpoint, receivers, deliveries, delivery, hooks, budget or health; p_args: texts of its query and path, empty: none. Errors: not_found (also for what is foreign), invalid_argument. Reads humans and what the page reads.';

create or replace function switchboard.call_board(p_digest bytea, p_page text, p_args jsonb default '{}') returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_who     record := identify_operator(p_digest);
    v_message text;
    v_detail  text;
begin
    if v_who.human_id is null then
        return null;
    end if;
    perform note_token_use(v_who.token_id, v_who.last_used_at);
    begin
        return board_page(v_who.human_id, p_page, p_args);
    exception when others then
        get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail;
        return error_value(sqlstate, v_message, v_detail) || jsonb_build_object('me', jsonb_build_object('id', v_who.human_id, 'name', v_who.human));
    end;
end $$;
comment on function switchboard.call_board(bytea, text, jsonb) is
'A page of the board for whoever p_digest is (SHA-256 of a session''s secret or of an operator token): board_page; NULL: it opens nothing; or {"error": {code, message, …details}, me: {id, name}}. Never raises for errors of the product. Writes operator_tokens, human_sessions (the use, once a minute).';

create or replace function switchboard.board_changes() returns text
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select pg_current_snapshot()::text
$$;
comment on function switchboard.board_changes() is 'A text that differs from an earlier one when a transaction that wrote has begun or ended since; the same text: nothing is new to see. Reads no table.';
