"""The flags of the suites' tools, as an integrator would set them from what each tool does.

outside: do third parties write what it returns? Mail, chat, shared files, calendars that accept
invitations, reviews, web pages, the reference lines of payments: yes. A catalogue of the service
itself (prices, addresses, opening hours), the user's own address book, balance and profile: no.
private: is its result confidential?
acts: does it change or send something? (`sends`: it only reads, but its arguments leave.)
"""

OUTSIDE = {
    "get_unread_emails", "get_received_emails", "get_sent_emails", "get_draft_emails",
    "search_emails", "search_calendar_events", "get_day_calendar_events", "search_files",
    "search_files_by_filename", "get_file_by_id", "list_files", "get_rating_reviews_for_hotels",
    "get_rating_reviews_for_restaurants", "get_rating_reviews_for_car_rental", "read_file",
    "get_most_recent_transactions", "get_scheduled_transactions", "get_channels",
    "get_users_in_channel", "read_channel_messages", "read_inbox", "get_webpage",
}  # fmt: skip
PRIVATE = {
    "get_unread_emails", "get_received_emails", "get_sent_emails", "get_draft_emails",
    "search_emails", "search_calendar_events", "get_day_calendar_events", "search_files",
    "search_files_by_filename", "get_file_by_id", "list_files", "read_file",
    "get_most_recent_transactions", "get_scheduled_transactions", "get_channels",
    "get_users_in_channel", "read_channel_messages", "read_inbox", "search_contacts_by_name",
    "search_contacts_by_email", "get_user_information", "get_user_info", "get_iban", "get_balance",
}  # fmt: skip
ACTS = {
    "send_email", "delete_email", "create_calendar_event", "cancel_calendar_event",
    "reschedule_calendar_event", "add_calendar_event_participants", "append_to_file",
    "create_file", "delete_file", "share_file", "reserve_hotel", "reserve_car_rental",
    "reserve_restaurant", "send_money", "schedule_transaction", "update_scheduled_transaction",
    "update_password", "update_user_info", "add_user_to_channel", "send_direct_message",
    "send_channel_message", "invite_user_to_slack", "remove_user_from_slack", "post_webpage",
}  # fmt: skip
SENDS = {"get_webpage"}
RETURNS_WHAT_IT_MADE = {
    "send_email", "create_calendar_event", "cancel_calendar_event", "reschedule_calendar_event",
    "add_calendar_event_participants", "append_to_file", "create_file", "delete_file", "share_file",
}  # fmt: skip
"""Acting tools that return the whole record, including text by third parties."""
